"""A trace in figures: a line of what ran, and for each canvas sparklines and, if wanted, a row for each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dgen.cli.sink import escaped
from dgen.cli.values import count_of
from dgen.cli.wrapping import hanging

if TYPE_CHECKING:
    from dgen.output.traced import Step, Trace, TracedCanvas


def headline(trace: Trace) -> Iterator[str]:
    """What ran, and how it went."""
    header, end = trace.header, trace.end
    yield escaped(
        f"{header['model']} · seed {header['seed']} · dgen {header['dgen_version']} · {header['id']}"
    )
    steps = sum(len(canvas.steps) for canvas in trace.canvases)
    outcome = "no end" if end is None else f"{end['finish_reason']} after {end['time']:.2f} s"
    if end is not None and end["error"]:
        outcome += f" ({end['error']})"
    counts = (
        count_of(len(header["prompt_ids"]), "prompt token"),
        count_of(len(trace.canvases), "canvas", "canvases"),
        count_of(steps, "step"),
        count_of(len(trace.tokens), "token"),
    )
    yield escaped(" · ".join((*counts, outcome)))


def canvas_lines(
    number: int, canvas: TracedCanvas, length: int, columns: int, *, steps: bool
) -> Iterator[str]:
    """One canvas in so many columns.

    Args:
        number: from 1.
        length: positions of a canvas.
        steps: whether each step has a row.
    """
    from dgen.output.sparkline import sparkline

    events = [step.event for step in canvas.steps]
    done = canvas.converged
    how = (
        f"converged by {done.converged_by}, {count_of(len(done.tokens), 'token')}"
        if done
        else "not converged"
    )
    yield from hanging(f"{count_of(len(events), 'step')}, {how}", f"canvas {number}: ", columns)
    rows: list[tuple[str, Sequence[float], str]] = [
        ("mean entropy", [event.mean_entropy for event in events], "{:.4f}"),
        ("accepted", [sum(event.accepted) for event in events], f"{{}}/{length}"),
        ("temperature", [event.temperature for event in events], "{:.3f}"),
        ("changed", [step.changed for step in canvas.steps], "{}"),
    ]
    for name, values, form in rows:
        span = f"{form.format(values[0])} → {form.format(values[-1])}"
        yield f"  {name:12}  {sparkline(values, max(4, columns - 16 - len(span) - 2))}  {span}"
    if steps:
        names = _fitting(columns)
        yield "".join(f"{name:>{_WIDTHS[name]}}" for name in names)
        for step in canvas.steps:
            cells = _cells(step)
            yield "".join(f"{cells[name]:>{_WIDTHS[name]}}" for name in names)


_WIDTHS = {"step": 6, "temperature": 13, "mean entropy": 14, "accepted": 10, "changed": 9, "seconds": 10}
_OPTIONAL = ("temperature", "seconds", "changed", "accepted")
"""Columns that a narrow terminal goes without, the first first."""


def _fitting(columns: int) -> list[str]:
    """The columns of a table of steps that stand side by side."""
    names = list(_WIDTHS)
    for name in _OPTIONAL:
        if sum(_WIDTHS[kept] for kept in names) > columns:
            names.remove(name)
    return names


def _cells(step: Step) -> dict[str, str]:
    event = step.event
    return {
        "step": f"{event.step + 1}",
        "temperature": f"{event.temperature:.3f}",
        "mean entropy": f"{event.mean_entropy:.4f}",
        "accepted": f"{sum(event.accepted)}",
        "changed": f"{step.changed}",
        "seconds": f"{step.time:.3f}",
    }
