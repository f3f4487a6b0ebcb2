"""What a bench found, as plain data: figures with every sample, runs, machine; to JSON and back.

Standard library alone. Seconds are raw samples; medians, floors and ratios are derived and written beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dgen.bench.quantiles import quantile

DGEN, REFERENCE, TRANSFORMERS, PLAIN = "dgen", "torch reference", "transformers", "plain torch"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One body's samples of one figure, in seconds; or why there are none (`skipped`)."""

    by: str
    seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    skipped: str | None = None

    @property
    def median(self) -> float | None:
        """Median of the samples, in seconds; None without any."""
        return quantile(self.seconds, 0.5) if self.seconds else None

    def record(self) -> dict[str, Any]:
        """JSON: the samples with their median, p10 and p90."""
        spread = {
            name: quantile(self.seconds, fraction) if self.seconds else None
            for name, fraction in (("median", 0.5), ("p10", 0.1), ("p90", 0.9))
        }
        return {
            "by": self.by,
            "seconds": list(self.seconds),
            **spread,
            "peak_bytes": self.peak_bytes,
            "skipped": self.skipped,
        }


@dataclass(frozen=True, slots=True)
class Work:
    """What no implementation can avoid: bytes to move and operations to do at the same time, and whose they are."""

    of: str
    bytes: int
    flops: float = 0.0

    def times(self, count: int) -> Work:
        """The same work `count` times."""
        return Work(self.of, count * self.bytes, count * self.flops)


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was timed, by dgen first and then by its peers.

    Attributes:
        floor: works that follow each other; empty where there is no floor.
        part: short name, where this is a part of the figure before it.
        tokens, requests: how many one sample generates, and for how many requests; 0 where it generates none.
    """

    key: str
    title: str
    measurements: tuple[Measurement, ...]
    floor: tuple[Work, ...] = ()
    part: str = ""
    tokens: int = 0
    requests: int = 1

    def of(self, by: str) -> Measurement | None:
        """The measurement of one body."""
        return next((m for m in self.measurements if m.by == by), None)

    @property
    def floor_bytes(self) -> int | None:
        """Bytes of all works; None without a floor."""
        return sum(work.bytes for work in self.floor) if self.floor else None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A large copy: `bytes` read and written together by each sample, in seconds."""

    bytes: int
    seconds: tuple[float, ...]

    @property
    def bytes_per_second(self) -> float:
        """Of the median copy."""
        return self.bytes / quantile(self.seconds, 0.5)


@dataclass(frozen=True, slots=True)
class Run:
    """A batch of requests from prompts to end: seconds of its parts, denoising steps of each, emitted tokens of all.

    `denoise` runs from the end of the prompts' causal passes to the end, later causal passes (`commit`) left out.
    """

    by: str
    batch: int
    prompt_tokens: int
    steps: int
    canvases: int
    tokens: int
    prefill: float
    denoise: float
    commit: float
    total: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one bench found.

    Attributes:
        schema: of the JSON; one of `settings`'.
        settings: what was asked for, a dataclass of `settings`.
        products: FLOP/s of a large matrix product, where operations count in a floor.
        facts: what is no time: ready, memory, experts.
    """

    schema: str
    settings: Any
    environment: Mapping[str, Any]
    bandwidth: Bandwidth
    figures: tuple[Figure, ...]
    products: float | None = None
    runs: tuple[Run, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def floor(self, figure: Figure) -> float | None:
        """Seconds of the figure's works one after the other, each by its bytes or its operations, whichever is longer.

        Bytes are at this machine's copy bandwidth, operations at its rate of matrix products.
        """
        if not figure.floor:
            return None
        return sum(
            max(
                work.bytes / self.bandwidth.bytes_per_second,
                work.flops / self.products if self.products else 0.0,
            )
            for work in figure.floor
        )

    def record(self) -> dict[str, Any]:
        """The report as strict JSON data."""
        return {
            "schema": self.schema,
            "settings": asdict(self.settings),
            "environment": dict(self.environment),
            "bandwidth": {
                "bytes": self.bandwidth.bytes,
                "seconds": list(self.bandwidth.seconds),
                "bytes_per_second": self.bandwidth.bytes_per_second,
            },
            "product_flops_per_second": self.products,
            "facts": dict(self.facts),
            "figures": [self._figure_record(figure) for figure in self.figures],
            "runs": [asdict(run) for run in self.runs],
        }

    def _figure_record(self, figure: Figure) -> dict[str, Any]:
        return {
            "key": figure.key,
            "title": figure.title,
            "tokens": figure.tokens,
            "requests": figure.requests,
            "floor_bytes": figure.floor_bytes,
            "floor_flops": sum(work.flops for work in figure.floor),
            "floor_of": ", ".join(work.of for work in figure.floor),
            "floor_seconds": self.floor(figure),
            "measurements": [m.record() for m in figure.measurements],
        }


def ratio(figure: Figure, peer: str) -> float | None:
    """How many times as long the peer's median takes as dgen's; above 1, dgen is faster. None where one is missing."""
    ours, theirs = figure.of(DGEN), figure.of(peer)
    if ours is None or theirs is None or not ours.median or theirs.median is None:
        return None
    return theirs.median / ours.median


def by_body(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each body, in order of appearance."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.by, []).append(run)
    return found
