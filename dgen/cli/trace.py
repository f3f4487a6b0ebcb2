"""`dgen trace`: look at what `--trace` wrote: in figures, as a film, as a page."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgen.cli import options
from dgen.cli.outputs import spare_foreign
from dgen.cli.sink import Sink, escaped, standard_streams, wants_color
from dgen.cli.trace_figures import canvas_lines, headline
from dgen.cli.watch import canvas_on, parse_seconds, place_of
from dgen.cli.wrapping import columns_of, hanging
from dgen.errors import OutputError, SettingsError, UsageError
from dgen.output.trace_file import STDIN

if TYPE_CHECKING:
    from dgen.output.live.canvas import LiveCanvas
    from dgen.output.text import TextStream
    from dgen.output.traced import Trace, TracedCanvas

PIPED_COLUMNS = 80
_MOST_SPEED = 1000.0

trace_app = typer.Typer(
    help="Look at a trace that generate --trace FILE wrote.",
    epilog='Try: dgen generate -p "7 + 5" --trace run.jsonl; dgen trace show run.jsonl',
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE", help="The trace's file, plain or gzipped; - is stdin.", show_default=False
    ),
]


@trace_app.command()
def show(
    file: TraceArgument,
    steps: Annotated[bool, typer.Option("--steps", help="A row for every step.")] = False,
    canvas: Annotated[
        str | None,
        typer.Option("--canvas", metavar="N", help="This canvas alone, from 1.", show_default=False),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Show a trace in figures.

    \b
    dgen trace show run.jsonl
    dgen trace show run.jsonl --steps --canvas 2
    ssh host cat run.jsonl | dgen trace show -
    """
    del debug  # read by main, which handles failures
    sink = _sink()
    trace = _read(file, sink)
    chosen = list(enumerate(trace.canvases, start=1))
    if canvas is not None:
        number = int(canvas) if canvas.isdecimal() else 0
        if not 1 <= number <= len(chosen):
            raise UsageError(
                f"there is no canvas '{canvas}' in '{file}'",
                hint=f"It has canvases 1 to {len(chosen)}." if chosen else "It has none yet.",
            )
        chosen = chosen[number - 1 : number]
    lines = [part for line in headline(trace) for part in hanging(line, "", columns_of(sys.stdout))]
    for number, one in chosen:
        lines += ["", *canvas_lines(number, one, trace.header["canvas_len"], _columns(), steps=steps)]
    if canvas is None:
        from dgen.output.report.page import texts

        lines += ["", escaped(texts(trace)[0])]
    sink.document("\n".join(lines))
    sink.close()


@trace_app.command()
def play(
    file: TraceArgument,
    speed: Annotated[
        str | None,
        typer.Option("--speed", metavar="X", help="Times as fast as it ran.", show_default=False),
    ] = None,
    slow: Annotated[
        str | None,
        typer.Option(
            "--slow", metavar="SECONDS", help="Hold each step this long instead.", show_default=False
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Replay a trace: the canvas on stderr as it was denoised, the text on stdout.

    \b
    dgen trace play run.jsonl
    dgen trace play run.jsonl --slow 0.3
    """
    del debug
    if speed is not None and slow is not None:
        raise UsageError(
            "--speed and --slow are both given",
            hint="--speed 0.2 keeps the rhythm of the run; --slow 0.3 holds each step as long.",
        )
    rate, hold = _speed(speed), parse_seconds(slow)
    sink = _sink()
    trace = _read(file, sink)
    place = place_of("on", sink)
    if place is None:
        raise OutputError("there is no stderr to play on", hint="Run it in a terminal.")
    steps = trace.header["settings"].get("steps")
    live = canvas_on(
        place,
        trace.vocabulary,
        max_steps=steps if isinstance(steps, int) else None,
        hold_seconds=hold,
    )
    try:
        _play(sink, live, trace, speed=rate if slow is None else None)
    finally:
        live.hide()
    sink.close()


@trace_app.command()
def html(
    file: TraceArgument,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page to write.", show_default=False)
    ],
    debug: options.Debug = False,
) -> None:
    """Write a trace as one HTML page that needs no network.

    \b
    dgen trace html run.jsonl --output run.html
    """
    del debug
    from dgen.output.report.page import report

    sink = _sink()
    if output != "-":
        spare_foreign(output, start=b"<!doctype html>", kind="page", option="--output")
    page = report(_read(file, sink))
    if output == "-":
        sink.document(page)
    else:
        where = Path(os.path.expanduser(output))
        try:
            where.write_text(page, encoding="utf-8", newline="\n")
        except (IsADirectoryError, FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"can't write '{output}': {error.strerror}", hint="Give a file in a folder that exists."
            ) from None
        except OSError as error:
            raise OutputError(
                f"can't write '{output}': {error.strerror}", hint="Check free space and permissions."
            ) from None
        sink.note(f"{output}: {len(page.encode()) / 1e3:.0f} kB")
    sink.close()


def _sink() -> Sink:
    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr, color=wants_color(stderr))
    sink.check()
    return sink


def _read(file: str, sink: Sink) -> Trace:
    """The trace; a warning says where one ends that has no end."""
    from dgen.output.trace_reader import read_trace

    trace = read_trace(file)
    if trace.end is None:
        where = "has no end" if trace.torn is None else f"breaks off within line {trace.torn}"
        name = "stdin" if file == STDIN else f"'{file}'"
        sink.warn(f"{name} {where}: its run goes on, or was killed; this is what there is")
    return trace


def _speed(text: str | None) -> float:
    try:
        speed = 1.0 if text is None else float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= _MOST_SPEED:
        raise SettingsError(
            f"--speed must be a number above 0 and at most {_MOST_SPEED:g}, not '{text}'",
            hint="1 is as it ran.",
        )
    return speed


def _columns() -> int:
    return max(20, columns_of(sys.stdout) or PIPED_COLUMNS)


def _play(sink: Sink, live: LiveCanvas, trace: Trace, *, speed: float | None) -> None:
    from dgen.output.text import TextStream

    stops = trace.header["settings"].get("stop")
    text = TextStream(trace.vocabulary, [stop for stop in stops or () if isinstance(stop, str) and stop])
    begun, first = time.monotonic(), None
    for canvas in trace.canvases:
        for step in canvas.steps:
            first = step.time if first is None else first
            if speed is not None:
                time.sleep(max(0.0, begun + (step.time - first) / speed - time.monotonic()))
            live.see(step.event)
        if canvas.converged is not None:
            live.see(canvas.converged)
            _write(sink, live, text, canvas)
    live.hide()
    for piece in text.finish():
        sink.piece(piece)


def _write(sink: Sink, live: LiveCanvas, text: TextStream, canvas: TracedCanvas) -> None:
    from dgen.cli.watch import on_screen

    assert canvas.converged is not None
    for piece in text.push(canvas.converged.tokens):
        live.hide()
        sink.piece(piece)
        live.wrote(on_screen(piece, sink))
