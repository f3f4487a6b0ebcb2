"""`dgen chat`: a conversation at the terminal, or of piped lines."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgen.chat.saved import read
from dgen.cli import options
from dgen.cli.generate import parse_format
from dgen.cli.inputs import from_argv
from dgen.cli.setting_flags import layers_of, takes_settings
from dgen.cli.sink import Sink, standard_streams, wants_color
from dgen.cli.watch import Draft, Slow, Watch
from dgen.settings import Layer, resolve

if TYPE_CHECKING:
    from dgen.generator import Generator

_INPUT, _OUTPUT = "Conversation", "Output"


@takes_settings()
def chat(
    system: Annotated[
        str | None, typer.Option("--system", help="A system message.", metavar="TEXT", rich_help_panel=_INPUT)
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            help="Go on with a conversation that /save wrote.",
            metavar="FILE",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    no_history: Annotated[
        bool,
        typer.Option("--no-history", help="Remember no lines between runs.", rich_help_panel=_INPUT),
    ] = False,
    output_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="text, json (a completion a turn) or jsonl (a line a token).",
            metavar="text|json|jsonl",
            rich_help_panel=_OUTPUT,
        ),
    ] = "text",
    draft: Draft = "auto",
    slow: Slow = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
    **flags: Any,
) -> None:
    """Talk with a model, turn by turn.

    \b
    dgen chat
    dgen chat -m google/diffusiongemma-26B-A4B-it --system "Be brief." --think
    dgen chat --load talk.json --seed 7
    printf 'What is 7 plus 5?\\nAnd 7 plus 6?\\n' | dgen chat -q

    At the prompt, /help lists the commands. Ctrl-C cancels the turn and keeps the
    conversation, once more it quits; Ctrl-D quits. Of piped stdin, each line is a
    turn.
    """
    stdout, stderr = standard_streams()
    format = parse_format(output_format)
    sink = Sink(stdout, stderr, format=format, quiet=quiet, verbose=verbose, color=wants_color(stderr))
    # What was asked for with a command is said, however quiet the rest is.
    replies = Sink(stdout, stderr, color=wants_color(stderr))
    sink.check()
    layers = layers_of(flags)
    if format == "jsonl":
        layers.insert(0, Layer("--format jsonl", {"logprobs": 0}))
    resolve(layers, partial=True)  # what is wrong with the command line is said before anything is loaded
    system = from_argv(system, "--system")
    load = from_argv(load, "--load")
    saved = None if load is None else read(load)
    watch = Watch(sink, draft=draft, slow=slow)
    if not watch.shows_canvas:
        slow = None  # said once, and not each turn

    from dgen.cli.lines import PipedLines, TypedLines, history_file, silent_keys

    typed = os.isatty(0) and sys.stdin is not None
    lines: TypedLines | PipedLines
    if typed:
        from dgen.cli.commands import COMMANDS

        words = [f"{name} " for name in COMMANDS]
        lines = TypedLines(stderr, words=words, history=None if no_history else history_file())
    else:
        lines = PipedLines()
    with silent_keys():
        generator = _load(sink, layers, verbose)

    from dgen.cli.talk import Talk

    talk = Talk(
        generator,
        lines,
        sink,
        replies,
        watch=lambda: Watch(sink, draft=draft, slow=slow),
        debug=debug,
    )
    try:
        code = talk.run(system=system, load=saved)
    finally:
        if isinstance(lines, TypedLines):
            lines.close()
    sink.close()
    if code:
        raise typer.Exit(code)


def _load(sink: Sink, layers: list[Layer], verbose: bool) -> Generator:
    from dgen.cli.account import setup_lines
    from dgen.cli.loading import load_generator
    from dgen.cli.progress import Progress

    with Progress(sink) as progress:
        loaded = load_generator(progress, layers, num_slots=2)
        generator = loaded.generator
        # One slot for the turn, another one for what was said, where there is room for it.
        if generator.denoiser.num_slots > 1:
            generator.engine.hold_prefix()
        prepared = loaded.prepare(progress)
        if verbose:
            progress.pause()
            for line in [*setup_lines(loaded, generator.resolved), *prepared]:
                sink.detail(line)
    return generator
