"""`dgen choose`: given answers in, their probabilities out."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgen.choices import check_choices
from dgen.cli import options
from dgen.cli.inputs import from_argv, read_prompt
from dgen.cli.loading import load_generator
from dgen.cli.progress import Progress
from dgen.cli.scores import aligned, known_format, reporter, runtime_of, whole_number
from dgen.cli.setting_flags import layers_of, takes_settings
from dgen.cli.sink import Sink, escaped, is_terminal, standard_streams, wants_color
from dgen.errors import UsageError
from dgen.settings import Layer, resolve

if TYPE_CHECKING:
    from dgen.choose import Chosen
    from dgen.generator import Generator

_INPUT, _SCORING, _OUTPUT = "Question", "Scoring", "Output"
SLOTS = 8
NO_QUESTION_HINT = "Give --prompt 'What colour is coal?', or --answer 'Coal is {{}}.', or both."
LEAST_MASS = 0.5
"""Below this, what the probabilities are shares of is hardly what the model would say."""


@takes_settings(scope="run")
def choose(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The question.", metavar="TEXT", rich_help_panel=_INPUT),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file", help="Read it from a file; - is stdin.", metavar="PATH", rich_help_panel=_INPUT
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message.", metavar="TEXT", rich_help_panel=_INPUT)
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            "--choices",
            "-c",
            help="The answers, with commas between.",
            metavar="A,B,C",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            "--choice",
            help="One answer, commas and all (repeatable).",
            metavar="TEXT",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    answer: Annotated[
        str,
        typer.Option(
            "--answer",
            help="The text around a choice; {{}} is its place.",
            metavar="TEXT",
            rich_help_panel=_INPUT,
        ),
    ] = "{{}}",
    passes: Annotated[
        str,
        typer.Option(
            "--passes",
            help="Canvases of different noise to average over.",
            metavar="INT",
            rich_help_panel=_SCORING,
        ),
    ] = "4",
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Score each choice in full, one step a token.", rich_help_panel=_SCORING
        ),
    ] = False,
    goes_on: Annotated[
        bool,
        typer.Option(
            "--goes-on",
            help="The answer goes on behind the choice: don't score its end.",
            rich_help_panel=_SCORING,
        ),
    ] = False,
    seed: options.Seed = None,
    output_format: Annotated[
        str, typer.Option("--format", help="text or json.", metavar="text|json", rich_help_panel=_OUTPUT)
    ] = "text",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
    **flags: Any,
) -> None:
    """Say how likely each of some given answers is.

    \b
    dgen choose -p "What colour is coal?" --answer "Coal is {{}}." -c black,white
    dgen choose --answer "The capital of France is {{}}." -c Paris,Rome --exact
    echo "What do bees make?" | dgen choose --answer "Bees make {{}}." -c wax,tea

    Without a question the answer's text stands alone.
    """  # fmt: skip
    del debug  # read by main, which handles failures
    stdout, stderr = standard_streams()
    # Beneath all others: many requests run, and one alone would leave the device idle.
    layers = [Layer("choose", {"slots": SLOTS}), *layers_of({**flags, "seed": seed})]
    sink = Sink(
        stdout,
        stderr,
        format=known_format(output_format, ("text", "json")),
        quiet=quiet,
        verbose=verbose,
        color=wants_color(stderr),
    )
    sink.check()
    early = resolve(layers, partial=True)
    draws = whole_number("passes", passes, low=1, high=1000)
    texts = _texts(choices, choice)
    alone = answer != "{{}}" and prompt is None and prompt_file is None
    # Where an answer's text may stand alone, stdin counts only if it was handed over on purpose.
    question = (
        read_prompt("" if alone else prompt, prompt_file, waiting=sink.note, hint=NO_QUESTION_HINT) or None
    )
    system, answer = from_argv(system, "--system"), from_argv(answer, "--answer") or ""
    check_choices(texts, prompt=question, system=system, answer=answer, passes=draws)
    with Progress(sink) as progress:
        started = time.perf_counter()
        generator = load_generator(progress, layers).generator
        from dgen.choose import choose as score

        loaded = time.perf_counter()
        progress.encoding((question or "") + answer)
        found = score(
            generator,
            texts,
            prompt=question,
            system=system,
            answer=answer,
            passes=draws,
            exact=exact,
            goes_on=goes_on,
            progress=reporter(sink, progress, early),
        )
        seconds = {"load": loaded - started, "scoring": time.perf_counter() - loaded}
        progress.clear()
    _write(sink, generator, found, seconds)
    sink.close()


def _texts(choices: str | None, choice: list[str] | None) -> list[str]:
    given = from_argv(choices, "--choices")
    texts = [text.strip() for text in given.split(",")] if given is not None else []
    texts += [from_argv(text, "--choice") or "" for text in choice or []]
    if not texts:
        raise UsageError("there are no choices", hint="For example: --choices yes,no,maybe")
    return texts


def _write(sink: Sink, generator: Generator, found: Chosen, seconds: dict[str, float]) -> None:
    from dgen.output.fillings import choice_record, run_record
    from dgen.output.records import dumps

    request = found.resolved.request_settings()
    if sink.is_text:
        shown = escaped if is_terminal(sys.stdout) else str
        sink.document(aligned([(f"{c.probability:8.4f}", shown(c.text)) for c in found.choices]))
    else:
        records = [
            choice_record(text=c.text, probability=c.probability, logprob=c.logprob, tokens=c.tokens)
            for c in found.choices
        ]
        run = run_record(
            "choose",
            seed=request["seed"],
            settings=request,
            passes=found.passes,
            seconds=seconds,
            best=found.best,
            choices=records,
            mass=found.mass,
            exact=found.exact,
            **runtime_of(generator),
        )
        sink.document(dumps(run))
    if found.mass < LEAST_MASS:
        sink.note(
            "The choices hold little of the model's probability: "
            + (
                "--answer gives them a sentence to stand in."
                if found.exact
                else "try --exact, or --answer for a sentence."
            )
        )
    way = "in full" if found.exact else "at once"
    sink.note(
        f"{way} · {found.passes} decoder passes · {seconds['scoring']:.1f} s · the choices hold "
        f"{found.mass:.1%} of the model's probability · seed {request['seed']}"
    )
