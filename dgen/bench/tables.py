"""A report as tables of text: what goes into which cell, and no word about how it is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dgen.bench.compare import Comparison
from dgen.bench.environment import machine
from dgen.bench.measure import gigabytes
from dgen.bench.quantiles import quantile
from dgen.bench.report import DGEN, Figure, Measurement, Report, Run, by_body, ratio


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the columns' headings, and rows of as many cells; all columns but the first `words` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 2


def headline(report: Report) -> list[str]:
    """Machine, versions and yardstick, in a few lines."""
    found, settings = dict(report.environment), report.settings
    versions = ", ".join(
        f"{name} {found[name]}" for name in ("torch", "triton", "transformers") if found.get(name)
    )
    rate = report.bandwidth.bytes_per_second
    lines = [
        f"{machine(found)} · dgen {found['dgen']}, {versions}",
        f"model {settings.model} ({settings.dtype}, {settings.denoiser} denoiser), sampler kernels {settings.kernels}",
        f"copy bandwidth {rate / 1e9:.1f} GB/s, read + written; every floor is its bytes at this rate",
        "x dgen, x floor: how many times as long as dgen and as the floor, by the medians",
    ]
    if not _has_peaks(report):
        peaks = [m.peak_bytes for figure in report.figures for m in figure.measurements if m.peak_bytes]
        lines += [f"peak memory of the process {gigabytes(max(peaks))}"] if peaks else []
    return lines


def tables(report: Report, comparison: Comparison | None = None) -> list[Table]:
    """The figures and the whole runs."""
    return [_figures(report, comparison), *_runs(report)]


def _figures(report: Report, comparison: Comparison | None) -> Table:
    columns = ["figure", "by", "median", "p10", "p90", "x dgen", "floor", "x floor"]
    if _has_peaks(report):
        columns.append("peak")
    if comparison is not None:
        columns.append("x old")
    rows = [row for figure in report.figures for row in _figure_rows(report, figure, comparison)]
    return Table(
        f"Figures, canvas {report.settings.canvas}, vocabulary {report.settings.vocab}",
        tuple(columns),
        tuple(rows),
    )


def _figure_rows(report: Report, figure: Figure, comparison: Comparison | None) -> Iterator[tuple[str, ...]]:
    floor = report.floor(figure)
    for index, measurement in enumerate(figure.measurements):
        cells = [figure.title if index == 0 else "", measurement.by, *_spread(measurement)]
        median, times = measurement.median, ratio(figure, measurement.by)
        cells.append("" if times is None or measurement.by == DGEN else f"{times:.2f}")
        cells.append("" if floor is None or index else duration(floor))
        cells.append(f"{median / floor:.1f}" if floor and median else "")
        if _has_peaks(report):
            cells.append("" if measurement.peak_bytes is None else gigabytes(measurement.peak_bytes))
        if comparison is not None:
            found = comparison.of(figure.key, measurement.by)
            cells.append("" if found is None else f"{found.ratio:.2f}")
        yield tuple(cells)
        if measurement.skipped is not None:
            yield ("", f"  {measurement.skipped}", *[""] * (len(cells) - 2))


def _has_peaks(report: Report) -> bool:
    """Whether peaks are each figure's own; on a CPU they are the process's so far, and say little of a figure."""
    return report.settings.device != "cpu"


def _spread(measurement: Measurement) -> list[str]:
    if not measurement.seconds:
        return ["skipped", "", ""]
    return [duration(quantile(measurement.seconds, fraction)) for fraction in (0.5, 0.1, 0.9)]


def _runs(report: Report) -> Iterator[Table]:
    if not report.runs:
        return
    columns = ("prompt", "by", "runs", "steps", "canvases", "tokens", "tokens a step", "prefill", "tokens/s")
    rows = []
    prompts = dict.fromkeys(run.prompt for run in report.runs)
    for prompt in prompts:
        for index, (by, runs) in enumerate(
            by_body([run for run in report.runs if run.prompt == prompt]).items()
        ):
            rows.append(
                (f"{prompt} ({runs[0].prompt_tokens} tokens)" if index == 0 else "", by, *_run_cells(runs))
            )
    for index, (by, runs) in enumerate(by_body(report.runs).items()):
        rows.append(("all" if index == 0 else "", by, *_run_cells(runs)))
    yield Table("Whole runs, from prompt to last token; medians", columns, tuple(rows))


def _run_cells(runs: list[Run]) -> list[str]:
    def median(values: list[float]) -> float:
        return quantile(values, 0.5)

    return [
        str(len(runs)),
        f"{median([run.steps for run in runs]):.0f}",
        f"{median([run.canvases for run in runs]):.0f}",
        f"{median([run.tokens for run in runs]):.0f}",
        f"{median([run.tokens / run.steps for run in runs]):.1f}",
        duration(median([run.prefill for run in runs])),
        f"{median([run.tokens / run.total for run in runs]):.0f}",
    ]


def duration(seconds: float) -> str:
    """Seconds for people, three digits and a unit: 1.25 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable")
