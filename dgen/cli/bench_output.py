"""What the bench's commands share: their common options checked, progress told, a report compared and written."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dgen.cli.progress import Progress
from dgen.cli.sink import Sink, is_terminal, standard_streams, wants_color
from dgen.errors import SettingsError

if TYPE_CHECKING:
    from dgen.bench.compare import OlderRun
    from dgen.bench.report import Report
    from dgen.bench.tables import Table

FORMATS = ("table", "json")
PIPED_WIDTH = 160

OutputFormat = Annotated[
    str,
    typer.Option(
        "--format", help="table, or json with every sample and the environment.", metavar="table|json"
    ),
]
Compare = Annotated[
    str | None,
    typer.Option("--compare", metavar="OLD.json", help="Show the ratios to an older run's JSON."),
]


def is_json(name: str) -> bool:
    """Whether --format asks for JSON; SettingsError for a format that isn't."""
    if name not in FORMATS:
        raise SettingsError(
            f"--format must be one of {', '.join(FORMATS)}, not '{name}'", hint="The default is table."
        )
    return name == "json"


def whole(name: str, text: str, *, low: int, high: int) -> int:
    """The whole number that an option was given; SettingsError for anything else."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise SettingsError(
            f"{name} must be a whole number from {low} to {high}, not '{text}' (--{name})",
            hint=f"For example: --{name} {low}",
        )
    return value


def numbers(name: str, text: str, *, low: int, high: int) -> tuple[int, ...]:
    """Comma-separated whole numbers, each once; errors as in `whole`."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(whole(name, part, low=low, high=high) for part in parts))


def repeats_of(text: str | None) -> int | None:
    """The value of --repeats; None leaves it to the bench."""
    return None if text is None else whole("repeats", text, low=1, high=10_000)


def open_sink(*, as_json: bool, quiet: bool, verbose: bool) -> Sink:
    """Where a bench writes; OutputError where stdout is closed."""
    stdout, stderr = standard_streams()
    sink = Sink(
        stdout,
        stderr,
        format="json" if as_json else "text",
        quiet=quiet,
        verbose=verbose,
        color=wants_color(sys.stderr),
    )
    sink.check()
    return sink


def teller(sink: Sink, progress: Progress) -> Callable[[str], None]:
    """Progress on a terminal's status line; elsewhere one plain line for each thing that is timed, not each repeat."""
    if is_terminal(sys.stderr):
        return progress.update
    told: set[str] = set()

    def tell(what: str) -> None:
        subject = what.partition(":")[0]
        if subject not in told:
            told.add(subject)
            sink.note(subject)

    return tell


def publish(sink: Sink, report: Report, *, as_json: bool, old: OlderRun | None) -> None:
    """Write a report to stdout, beside an older run where there is one, and close the sink."""
    from dgen.bench.compare import compare
    from dgen.bench.tables import headline, tables

    comparison = None if old is None else compare(report, old)
    if comparison is not None:
        for difference in comparison.differences:
            sink.warn(f"compared with {comparison.path}: {difference}")
    if as_json:
        compared = None if comparison is None else comparison.record()
        sink.document(json.dumps({**report.record(), "compare": compared}, indent=1, allow_nan=False))
    else:
        sink.document(draw(headline(report), tables(report, comparison)))
    sink.close()


def draw(lines: Sequence[str], tables: Sequence[Table]) -> str:
    """Lines and tables as text for stdout: plain when piped."""
    from rich.console import Console

    watched = is_terminal(sys.stdout)
    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=watched,
        no_color=not wants_color(sys.stdout),
        color_system="standard" if wants_color(sys.stdout) else None,
        width=max(80, shutil.get_terminal_size().columns) if watched else PIPED_WIDTH,
        highlight=False,
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    for table in tables:
        console.print()
        console.print(_drawn(table.fit(console.width)))
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())


def _drawn(table: Table) -> object:
    from rich import box
    from rich import table as rich_table
    from rich.text import Text

    from dgen.bench.tables import WORDS_WIDTH

    drawn = rich_table.Table(
        title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, heading in enumerate(table.columns):
        is_words = index < table.words
        drawn.add_column(
            heading,
            justify="left" if is_words else "right",
            no_wrap=not is_words,
            min_width=WORDS_WIDTH if is_words else None,
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
