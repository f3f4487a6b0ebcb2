"""`dgen bench`: the sampler's kernels and a denoising step, timed beside their floors and their peers."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dgen.cli import options
from dgen.cli.generate import BUILTIN_NOTE
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink, is_terminal, standard_streams, wants_color
from dgen.errors import SettingsError
from dgen.layers import environment_layer
from dgen.settings import SETTINGS, Layer, resolve

if TYPE_CHECKING:
    from dgen.bench.compare import Comparison, OlderRun
    from dgen.bench.report import Report, Settings
    from dgen.bench.steps import Subject
    from dgen.bench.tables import Table
    from dgen.generator import Generator

FORMATS = ("table", "json")
SEED = 1
PIPED_WIDTH = 160


class _Sizes(NamedTuple):
    """How much to time; repeats None leaves them to the bench."""

    canvas: int
    vocab: int
    repeats: int | None


bench_app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@bench_app.callback()
def bench(
    context: typer.Context,
    canvas: Annotated[
        str, typer.Option("--canvas", metavar="N", help="Rows of logits, for the sampler's figures.")
    ] = "256",
    vocab: Annotated[
        str, typer.Option("--vocab", metavar="N", help="Columns of logits, for the sampler's figures.")
    ] = "262144",
    repeats: Annotated[
        str | None,
        typer.Option(
            "--repeats",
            metavar="N",
            help="Timed repeats of every figure.  [default: on CUDA 50, on a CPU 3; 5 of the step]",
        ),
    ] = None,
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = None,
    dtype: options.DType = None,
    offline: options.Offline = None,
    output_format: Annotated[
        str,
        typer.Option(
            "--format", help="table, or json with every sample and the environment.", metavar="table|json"
        ),
    ] = "table",
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="OLD.json", help="Show the ratios to an older run's JSON."),
    ] = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Time the sampler and a denoising step on this machine.

    \b
    dgen bench --canvas 256
    dgen bench --canvas 256 --format json > new.json
    dgen bench --canvas 256 --compare old.json
    dgen bench --device cpu --vocab 32768 --repeats 10

    Every figure stands beside its floor (the bytes that it can't avoid to move, at this machine's copy bandwidth)
    and beside its peers of the same run: torch, and transformers' own ops and generate. Requests are the model's
    own defaults at fixed seeds.
    """
    del debug  # read by main, which handles failures
    if context.invoked_subcommand is not None:
        return
    as_json = is_json(output_format)
    sizes = _Sizes(
        canvas=whole("canvas", canvas, low=1, high=2**16),
        vocab=whole("vocab", vocab, low=2, high=2**31 - 1),
        repeats=None if repeats is None else whole("repeats", repeats, low=1, high=10_000),
    )
    layers = _layers(model=model, revision=revision, device=device, dtype=dtype, offline=offline)
    # What is wrong with the command line is said before anything is loaded.
    early = resolve(layers, partial=True)
    old = None if compare is None else _read_older(compare, sizes)
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
    if early.sources["model"] == "default":
        sink.note(BUILTIN_NOTE)
    report = _measure(sink, layers, sizes)
    comparison = None if old is None else _compare(sink, report, old)
    if as_json:
        compared = None if comparison is None else comparison.record()
        sink.document(json.dumps({**report.record(), "compare": compared}, indent=1, allow_nan=False))
    else:
        sink.document(_render(report, comparison))
    sink.close()


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
            hint="See dgen bench --help.",
        )
    return value


def _layers(**flags: str | bool | None) -> list[Layer]:
    """The environment's settings of the run (model, device ...) under the flags; a request's are the model's own."""
    environment = environment_layer(os.environ)
    run = {name: value for name, value in environment.values.items() if SETTINGS[name].scope == "run"}
    given = options.settings_layers(None, True, None, **flags)
    return [Layer(environment.source, run), *given]


def _read_older(path: str, sizes: _Sizes) -> OlderRun:
    from dgen.bench.compare import read_report

    return read_report(path, canvas=sizes.canvas, vocab=sizes.vocab)


def _compare(sink: Sink, report: Report, old: OlderRun) -> Comparison:
    from dgen.bench.compare import compare

    comparison = compare(report, old)
    for difference in comparison.differences:
        sink.warn(f"compared with {old.path}: {difference}")
    return comparison


def _measure(sink: Sink, layers: list[Layer], sizes: _Sizes) -> Report:
    with Progress(sink) as progress:
        tell = teller(sink, progress)
        tell("importing torch and transformers")
        from dgen.bench.environment import environment
        from dgen.bench.suite import run_suite
        from dgen.checkpoint.memory import free_memory
        from dgen.generator import from_layers

        tell("loading the checkpoint")
        generator = from_layers(layers)
        subject = _subject(generator)
        found = environment(subject.denoiser.device)
        for name, value in found.items():
            sink.detail(f"{name}: {value}")
        settings = _settings(generator, sizes)
        return run_suite(settings, subject, found, free_memory=free_memory, progress=tell)


def _subject(generator: Generator) -> Subject:
    from dgen.bench.steps import PROMPTS, Subject

    requests = [(prompt, generator.job(prompt, seed=SEED).request) for prompt in PROMPTS]
    return Subject(generator.checkpoint.model, generator.denoiser, generator.kernels, requests)


def _settings(generator: Generator, sizes: _Sizes) -> Settings:
    from dgen.bench.report import Settings

    checkpoint = generator.checkpoint
    return Settings(
        **sizes._asdict(),
        device=str(checkpoint.device),
        kernels=generator.kernels.name,
        denoiser=generator.denoiser.name,
        model=checkpoint.name,
        revision=checkpoint.revision,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        model_canvas=checkpoint.canvas_len,
    )


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


def _render(report: Report, comparison: Comparison | None) -> str:
    from dgen.bench.tables import headline, tables

    return draw(headline(report), tables(report, comparison))


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
        console.print(_drawn(table))
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())


def _drawn(table: Table) -> object:
    from rich import box
    from rich import table as rich_table
    from rich.text import Text

    drawn = rich_table.Table(
        title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, heading in enumerate(table.columns):
        is_words = index < table.words
        drawn.add_column(
            heading,
            justify="left" if is_words else "right",
            no_wrap=not is_words,
            min_width=12 if is_words else None,
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
