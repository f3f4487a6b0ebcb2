"""`dgen infill`: a text with gaps in, one or several fillings out."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgen.cli import options
from dgen.cli.inputs import from_argv, read_prompt
from dgen.cli.loading import load_generator
from dgen.cli.progress import Progress
from dgen.cli.scores import aligned, known_format, marked, reporter, runtime_of, whole_number
from dgen.cli.setting_flags import layers_of, takes_settings
from dgen.cli.sink import Sink, standard_streams, wants_color
from dgen.errors import UsageError
from dgen.infill.draft import check_share, check_spans
from dgen.infill.template import check_voice, parse_template
from dgen.settings import Layer, resolve

if TYPE_CHECKING:
    from dgen.generator import Generator
    from dgen.infill.search import Infilled
    from dgen.infill.template import Template

_INPUT, _OUTPUT = "Text", "Output"
SLOTS = 8
NO_TEXT_HINT = "For example: dgen infill --prompt 'The capital of {{4}} is Paris.'"
NOT_HERE = ("logprobs", "logprob_ids", "logprobs_of", "stop", "think")


@takes_settings(without=NOT_HERE)
def infill(
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="A text with gaps: {{4}} takes up to 4 tokens, {{}} any number.",
            metavar="TEXT",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file", help="Read it from a file; - is stdin.", metavar="PATH", rich_help_panel=_INPUT
        ),
    ] = None,
    draft_file: Annotated[
        str | None,
        typer.Option(
            "--draft-file",
            help="A text without gaps, parts of which are written anew.",
            metavar="PATH",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    renoise: Annotated[
        str | None,
        typer.Option(
            "--renoise",
            help="Share of the draft's words to write anew.",
            metavar="SHARE",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(
            "--span",
            help="Characters of the draft to write anew, END left out (repeatable).",
            metavar="START:END",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    instruction: Annotated[
        str | None,
        typer.Option(
            "--instruction",
            help="What the text answers: it is then the model's turn of a chat.",
            metavar="TEXT",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", help="A system message for the instruction.", metavar="TEXT", rich_help_panel=_INPUT
        ),
    ] = None,
    n: Annotated[
        str,
        typer.Option(
            "--n", "-n", help="How many fillings, the best first.", metavar="INT", rich_help_panel=_OUTPUT
        ),
    ] = "1",
    tries: Annotated[
        str,
        typer.Option(
            "--tries",
            help="Seeds that each likely length is denoised under.",
            metavar="INT",
            rich_help_panel=_OUTPUT,
        ),
    ] = "4",
    output_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="text, json, or jsonl (a line a filling).",
            metavar="text|json|jsonl",
            rich_help_panel=_OUTPUT,
        ),
    ] = "text",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
    **flags: Any,
) -> None:
    """Fill the gaps of a text, with both sides in view; what is given comes back unchanged.

    \b
    dgen infill --prompt "The capital of {{4}} is Paris."
    dgen infill --prompt "Once upon a time, a {{2}} named {{2}} lived {{}}." --n 5
    dgen infill --draft-file story.txt --renoise 0.4 --seed 7
    dgen infill --draft-file story.txt --span 10:25 --format json

    A literal pair of braces is written \\{{.
    """  # fmt: skip
    del debug  # read by main, which handles failures
    stdout, stderr = standard_streams()
    # Beneath all others: a search runs many requests.
    layers = [Layer("infill", {"slots": SLOTS}), *layers_of(flags)]
    sink = Sink(
        stdout,
        stderr,
        format=known_format(output_format),
        quiet=quiet,
        verbose=verbose,
        color=wants_color(stderr),
    )
    sink.check()
    early = resolve(layers, partial=True)
    count = whole_number("n", n, low=1, high=1000)
    seeds = whole_number("tries", tries, low=1, high=1000)
    source = _Source(sink, prompt, prompt_file, draft_file, renoise, span)
    # Drawn here, since it also draws the words of a draft.
    seed = early.settings.seed if early.settings.seed is not None else secrets.randbelow(2**32)
    instruction = from_argv(instruction, "--instruction")
    system = from_argv(system, "--system")
    check_voice(instruction, system)
    with Progress(sink) as progress:
        started = time.perf_counter()
        generator = load_generator(progress, layers).generator
        from dgen.infill.search import infill as fill

        loaded = time.perf_counter()
        template = source.template(generator, seed=seed)
        progress.encoding("".join(template.pieces))
        found = fill(
            generator,
            template,
            instruction=instruction,
            system=system,
            n=count,
            tries=seeds,
            seed=seed,
            progress=reporter(sink, progress, early),
        )
        seconds = {"load": loaded - started, "search": time.perf_counter() - loaded}
        progress.clear()
    _write(sink, generator, template, found, wanted=count, seconds=seconds, lines=output_format == "jsonl")
    sink.close()


class _Source:
    """Where the template comes from; what is wrong with it is said before a checkpoint is loaded."""

    def __init__(
        self,
        sink: Sink,
        prompt: str | None,
        prompt_file: str | None,
        draft_file: str | None,
        renoise: str | None,
        spans: list[str] | None,
    ) -> None:
        self._draft: str | None = None
        self._share: float | None = None
        self._spans = [_span(text) for text in spans or []]
        if draft_file is None:
            if renoise is not None or spans:
                raise UsageError("--renoise and --span need a draft", hint="Add --draft-file.")
            self._parsed = parse_template(
                read_prompt(prompt, prompt_file, waiting=sink.note, hint=NO_TEXT_HINT)
            )
            return
        if prompt is not None or prompt_file is not None:
            raise UsageError("both a draft and a prompt were given", hint="Give one of them.")
        if renoise is not None and spans:
            raise UsageError("both --renoise and --span were given", hint="Give one of them.")
        if renoise is None and not spans:
            raise UsageError(
                "say which part of the draft to write anew", hint="Give either --renoise 0.4 or --span 10:25."
            )
        self._draft = read_prompt(None, draft_file, waiting=sink.note)
        if renoise is not None:
            self._share = _share(renoise)
            check_share(self._draft, self._share)
        else:
            check_spans(self._draft, self._spans)

    def template(self, generator: Generator, *, seed: int) -> Template:
        """The text with its gaps; those of a draft are sized by this checkpoint's tokenizer."""
        from dgen.infill.draft import renoise_share, renoise_spans

        if self._draft is None:
            return self._parsed
        tokenizer = generator.checkpoint.tokenizer

        def count_tokens(text: str) -> int:
            return len(tokenizer.encode(text, add_special_tokens=False))

        if self._share is not None:
            return renoise_share(self._draft, self._share, seed=seed, count_tokens=count_tokens)
        return renoise_spans(self._draft, self._spans, count_tokens=count_tokens)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(
            f"--renoise must be a number above 0 and at most 1, not '{text}'",
            hint="For example: --renoise 0.4",
        )
    return share


def _span(text: str) -> tuple[int, int]:
    start, colon, end = text.partition(":")
    # Python reads no number of thousands of digits, and no draft is that long.
    if not (colon and all(part.isascii() and part.isdigit() and len(part) < 16 for part in (start, end))):
        raise UsageError(
            f"--span takes START:END, not '{text}'", hint="Characters from 0, END left out: --span 10:25"
        )
    return int(start), int(end)


def _write(
    sink: Sink,
    generator: Generator,
    template: Template,
    found: Infilled,
    *,
    wanted: int,
    seconds: dict[str, float],
    lines: bool,
) -> None:
    from dgen.output.fillings import filling_record, run_record
    from dgen.output.records import dumps

    records = [
        filling_record(
            rank=rank, text=f.text, pieces=template.pieces, fills=f.fills, ids=f.ids, score=f.score,
            gap_logprob=f.gap_logprob, seed=f.seed,
        )
        for rank, f in enumerate(found.fillings, 1)
    ]  # fmt: skip
    request = found.resolved.request_settings()
    if sink.is_text:
        texts = [marked(template.pieces, f.fills) for f in found.fillings]
        if wanted == 1:
            sink.document(texts[0])
        else:
            sink.document(
                aligned([(f"{f.score:7.2f}", t) for f, t in zip(found.fillings, texts, strict=True)])
            )
    else:
        for record in records if lines else ():
            sink.document(dumps(record))
        run = run_record(
            "infill",
            seed=request["seed"],
            settings=request,
            passes=found.passes,
            seconds=seconds,
            fillings=None if lines else records,
            **runtime_of(generator),
        )
        sink.document(dumps(run))
    if len(found.fillings) < wanted:
        sink.note(
            f"{len(found.fillings)} of {wanted} fillings: the others said the same; --tries looks further"
        )
    sink.note(
        f"score {found.fillings[0].score:.2f} · {found.passes} decoder passes · {seconds['search']:.1f} s · "
        f"seed {request['seed']}"
    )
