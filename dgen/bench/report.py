"""What a bench found, as plain data: figures with every sample, runs, machine; to JSON and back.

Standard library alone. Seconds are raw samples; medians, floors and ratios are derived and written beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dgen.bench.quantiles import quantile

SCHEMA = "dgen.bench.v1"
DGEN, REFERENCE, TRANSFORMERS, PLAIN = "dgen", "torch reference", "transformers", "plain torch"


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. `model_canvas` and `dtype` are the model's own, for the denoising step."""

    canvas: int
    vocab: int
    repeats: int | None
    device: str
    kernels: str
    denoiser: str
    model: str
    revision: str | None
    dtype: str
    model_canvas: int


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
class Figure:
    """One thing that was timed, by dgen first and then by its peers.

    `floor_bytes` are the bytes that no implementation can avoid to move, with `floor_of` saying which; None: no floor.
    """

    key: str
    title: str
    measurements: tuple[Measurement, ...]
    floor_bytes: int | None = None
    floor_of: str = ""

    def of(self, by: str) -> Measurement | None:
        """The measurement of one body."""
        return next((m for m in self.measurements if m.by == by), None)


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
    """One request from prompt to end: seconds of its parts, denoising steps and emitted tokens.

    `denoise` runs from the prompt's causal pass to the end, later causal passes (`commit`) left out.
    """

    by: str
    prompt: str
    seed: int
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
    """Everything that one bench found."""

    settings: Settings
    environment: Mapping[str, Any]
    bandwidth: Bandwidth
    figures: tuple[Figure, ...]
    runs: tuple[Run, ...] = field(default=())

    def floor(self, figure: Figure) -> float | None:
        """Seconds that the figure's floor takes at this machine's copy bandwidth."""
        if figure.floor_bytes is None:
            return None
        return figure.floor_bytes / self.bandwidth.bytes_per_second

    def record(self) -> dict[str, Any]:
        """The report as strict JSON data."""
        return {
            "schema": SCHEMA,
            "settings": asdict(self.settings),
            "environment": dict(self.environment),
            "bandwidth": {
                "bytes": self.bandwidth.bytes,
                "seconds": list(self.bandwidth.seconds),
                "bytes_per_second": self.bandwidth.bytes_per_second,
            },
            "figures": [self._figure_record(figure) for figure in self.figures],
            "runs": [asdict(run) for run in self.runs],
        }

    def _figure_record(self, figure: Figure) -> dict[str, Any]:
        return {
            "key": figure.key,
            "title": figure.title,
            "floor_bytes": figure.floor_bytes,
            "floor_of": figure.floor_of,
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
