"""A report as tables of text: what goes into which cell, and no word about how it is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dgen.bench.compare import Comparison
from dgen.bench.environment import machine
from dgen.bench.measure import gigabytes
from dgen.bench.quantiles import quantile
from dgen.bench.report import DGEN, Figure, Measurement, Report, ratio


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the columns' headings, and rows of as many cells; all columns but the first `words` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 2
    optional: tuple[str, ...] = ()
    """Columns that a narrow terminal goes without, the first first; JSON has them all."""

    def fit(self, width: int) -> Table:
        """The table for a terminal of so many columns: as few optional columns missing as possible."""
        table = self
        for heading in self.optional:
            if heading in table.columns and table._width() > width:
                left = table.columns.index(heading)
                columns, *rows = ((*row[:left], *row[left + 1 :]) for row in (table.columns, *table.rows))
                table = replace(table, columns=columns, rows=tuple(rows))
        return table

    def _width(self) -> int:
        """What it takes at least: words can be wrapped, numbers can't."""
        numbers = [
            max(len(row[index]) for row in (self.columns, *self.rows))
            for index in range(self.words, len(self.columns))
        ]
        return self.words * WORDS_WIDTH + sum(numbers) + GAP * len(self.columns)


WORDS_WIDTH = 12
"""Least width of a column of words."""
GAP = 3
"""Between two columns."""


def headline(report: Report) -> list[str]:
    """Machine, versions, model and yardsticks, in a few lines."""
    found, settings, facts = dict(report.environment), report.settings, report.facts
    model = getattr(settings, "model", None)
    packages = ("torch", "triton", "transformers") if model else ("torch", "triton")
    versions = ", ".join(f"{name} {found[name]}" for name in packages if found.get(name))
    lines = [f"{machine(found)} · dgen {found['dgen']}, {versions}, sampler kernels {settings.kernels}"]
    if model:
        weights = f", {gigabytes(facts['weight_bytes'])} of weights" if "weight_bytes" in facts else ""
        lines.append(
            f"model {model} ({settings.dtype}, {settings.denoiser} denoiser){weights}, "
            f"canvas {settings.model_canvas}"
        )
    if "ready_seconds" in facts:
        graphs = ", graphs" if facts["captures"] else ""
        lines.append(
            f"ready {facts['ready_seconds']:.1f} s after the weights were in memory: "
            f"denoiser, kernels{graphs}, first step"
        )
    rate = report.bandwidth.bytes_per_second
    products = "" if report.products is None else f"; matrix products {report.products / 1e12:.2f} TFLOP/s"
    lines += [
        f"copy bandwidth {rate / 1e9:.1f} GB/s, read + written{products}; "
        "every floor is its bytes or operations at these",
        "x dgen, x floor: how many times as long as dgen and as the floor, by the medians",
    ]
    if not _has_peaks(report):
        peaks = [m.peak_bytes for figure in report.figures for m in figure.measurements if m.peak_bytes]
        lines += [f"peak memory of the process {gigabytes(max(peaks))}"] if peaks else []
    return lines


def tables(report: Report, comparison: Comparison | None = None) -> list[Table]:
    """The figures, and after a bench of steps what is no time."""
    cells = report.facts.get("cells", []) if _has_peaks(report) or _is_split(report) else []
    return [_figures(report, comparison), *([_cells(cells)] if cells else [])]


def _is_split(report: Report) -> bool:
    """Whether this is a bench of steps, and not the short form, which ends in one table."""
    return hasattr(report.settings, "batches")


def _cells(cells: list[dict[str, object]]) -> Table:
    columns = ("batch", "prompt", "memory beyond the weights", "experts hit a layer")
    return Table("Steps: memory and experts", columns, tuple(tuple(_cell(cell)) for cell in cells), words=0)


def _cell(cell: dict[str, object]) -> Iterator[str]:
    beyond, hit = cell["beyond_weights_bytes"], cell["experts_hit"]
    yield str(cell["batch"])
    yield str(cell["prompt"])
    # On a CPU nobody counts it: the headline has the whole process's.
    yield "n/a" if beyond is None else gigabytes(float(str(beyond)))
    yield "n/a" if hit is None else f"{float(str(hit)):.1f} of {cell['num_experts']}"


def _figures(report: Report, comparison: Comparison | None) -> Table:
    columns = ["figure", "by", "median", "p10", "p90", "x dgen", "floor", "x floor"]
    if _has_tokens(report):
        columns += ["tokens/s", "each"]
    if _has_peaks(report):
        columns.append("peak")
    if comparison is not None:
        columns.append("x old")
    rows = [row for figure in report.figures for row in _figure_rows(report, figure, comparison)]
    return Table(_title(report), tuple(columns), tuple(rows), optional=_OPTIONAL)


_OPTIONAL = ("p10", "p90", "peak", "each", "x dgen", "floor")


def _title(report: Report) -> str:
    settings = report.settings
    if hasattr(settings, "canvas"):
        return f"Figures; the sampler's are of canvas {settings.canvas}, vocabulary {settings.vocab}"
    return "Figures" if getattr(settings, "model", None) else "The sampler"


def _figure_rows(report: Report, figure: Figure, comparison: Comparison | None) -> Iterator[tuple[str, ...]]:
    floor = report.floor(figure)
    title = f"  {figure.part}" if figure.part else figure.title
    for index, measurement in enumerate(figure.measurements):
        cells = [title if index == 0 else "", measurement.by, *_spread(measurement)]
        median, times = measurement.median, ratio(figure, measurement.by)
        cells.append("" if times is None or measurement.by == DGEN else f"{times:.2f}")
        cells.append("" if floor is None or index else duration(floor))
        cells.append(f"{median / floor:.2f}" if floor and median else "")
        if _has_tokens(report):
            rate = figure.tokens / median if figure.tokens and median else None
            cells.append("" if rate is None else f"{rate:.0f}")
            cells.append("" if rate is None or figure.requests < 2 else f"{rate / figure.requests:.0f}")
        if _has_peaks(report):
            cells.append("" if measurement.peak_bytes is None else gigabytes(measurement.peak_bytes))
        if comparison is not None:
            found = comparison.of(figure.key, measurement.by)
            cells.append("" if found is None else f"{found.ratio:.2f}")
        yield tuple(cells)
        if measurement.skipped is not None:
            yield ("", f"  {measurement.skipped}", *[""] * (len(cells) - 2))


def _has_tokens(report: Report) -> bool:
    return any(figure.tokens for figure in report.figures)


def _has_peaks(report: Report) -> bool:
    """Whether peaks are each figure's own; on a CPU they are the process's so far, and say little of a figure."""
    return bool(report.settings.device != "cpu")


def _spread(measurement: Measurement) -> list[str]:
    if not measurement.seconds:
        return ["skipped", "", ""]
    if len(measurement.seconds) == 1:
        return [duration(measurement.seconds[0]), "", ""]
    return [duration(quantile(measurement.seconds, fraction)) for fraction in (0.5, 0.1, 0.9)]


def duration(seconds: float) -> str:
    """Seconds for people, three digits and a unit: 1.25 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable")
