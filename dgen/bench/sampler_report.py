"""What `dgen bench sampler` found, as plain data and as a table: figures beside their floors and their peers.

The figures and measurements are those of `report`; here are the settings of a sweep over shapes, and its rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dgen.bench.environment import machine
from dgen.bench.quantiles import quantile
from dgen.bench.report import DGEN, Bandwidth, Figure, Measurement, ratio
from dgen.bench.tables import Table, duration

SCHEMA = "dgen.bench.sampler.v1"


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """What was asked for: every combination of rows, vocabularies, dtypes and top-k is timed.

    Attributes:
        hidden: width of the hidden states of the chain.
        compiled: whether torch.compile of the references is among the peers.
        repeats: timed calls of each body, None for this room's defaults.
        only: part of the keys of the figures to time; empty for all.
    """

    rows: tuple[int, ...]
    vocabs: tuple[int, ...]
    dtypes: tuple[str, ...]
    top_ks: tuple[int, ...]
    hidden: int
    compiled: bool
    repeats: int | None
    device: str
    kernels: str
    only: str = ""


@dataclass(frozen=True, slots=True)
class SamplerReport:
    """Everything that one sweep found; `products` is the measured rate of a large matrix product, FLOP/s."""

    settings: SamplerSettings
    environment: Mapping[str, Any]
    bandwidth: Bandwidth
    products: float
    figures: tuple[Figure, ...]
    flops: Mapping[str, float]

    def floor(self, figure: Figure) -> float | None:
        """Seconds that the figure's bytes take at the copy bandwidth, or its products at their rate, if more."""
        if figure.floor_bytes is None:
            return None
        moved = figure.floor_bytes / self.bandwidth.bytes_per_second
        return max(moved, self.flops.get(figure.key, 0.0) / self.products)

    def record(self) -> dict[str, Any]:
        """The report as strict JSON data."""
        return {
            "schema": SCHEMA,
            "settings": asdict(self.settings),
            "environment": dict(self.environment),
            "bandwidth": {**asdict(self.bandwidth), "bytes_per_second": self.bandwidth.bytes_per_second},
            "product_flops_per_second": self.products,
            "figures": [self._figure_record(figure) for figure in self.figures],
        }

    def _figure_record(self, figure: Figure) -> dict[str, Any]:
        return {
            "key": figure.key,
            "title": figure.title,
            "floor_bytes": figure.floor_bytes,
            "floor_flops": self.flops.get(figure.key),
            "floor_of": figure.floor_of,
            "floor_seconds": self.floor(figure),
            "measurements": [m.record() for m in figure.measurements],
        }

    def headline(self) -> list[str]:
        """Machine, versions and yardsticks, in a few lines."""
        found = self.environment
        versions = ", ".join(f"{name} {found[name]}" for name in ("torch", "triton") if found.get(name))
        return [
            f"{machine(dict(found))} · dgen {found['dgen']}, {versions}, sampler kernels {self.settings.kernels}",
            f"copy bandwidth {self.bandwidth.bytes_per_second / 1e9:.1f} GB/s, read + written; "
            f"matrix products {self.products / 1e12:.2f} TFLOP/s; every floor is its bytes or operations at these",
            "x dgen, x floor: how many times as long as dgen and as the floor, by the medians",
        ]

    def table(self) -> Table:
        """Every figure, dgen first and then its peers."""
        columns = ("figure", "by", "median", "p10", "p90", "x dgen", "floor", "x floor")
        rows = tuple(row for figure in self.figures for row in self._rows(figure))
        return Table("The sampler", columns, rows)

    def _rows(self, figure: Figure) -> Iterator[tuple[str, ...]]:
        floor = self.floor(figure)
        for index, measurement in enumerate(figure.measurements):
            title, median = "" if index else figure.title, measurement.median
            if median is None:
                yield (title, measurement.by, "skipped", "", "", "", "", "")
                yield ("", f"  {measurement.skipped}", "", "", "", "", "", "")
                continue
            times = None if measurement.by == DGEN else ratio(figure, measurement.by)
            yield (
                title,
                measurement.by,
                *_spread(measurement),
                "" if times is None else f"{times:.2f}",
                "" if floor is None or index else duration(floor),
                f"{median / floor:.2f}" if floor else "",
            )


def _spread(measurement: Measurement) -> list[str]:
    return [duration(quantile(measurement.seconds, fraction)) for fraction in (0.5, 0.1, 0.9)]
