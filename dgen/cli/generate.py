"""`dgen generate`: one prompt in, committed text or JSON out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args

import typer

from dgen.cli import options
from dgen.cli.account import follow, setup_lines, summary, tell_model
from dgen.cli.inputs import from_argv, read_prompt
from dgen.cli.interruption import Interruption
from dgen.cli.loading import load_generator
from dgen.cli.progress import Progress
from dgen.cli.sink import Format, Sink, standard_streams, wants_color
from dgen.cli.watch import Draft, Slow, TraceFile, Watch
from dgen.errors import DgenError, SettingsError, UsageError
from dgen.prompt import check_prompt
from dgen.settings import Layer, resolve

_INPUT, _OUTPUT = "Prompt", "Output"


def generate(
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The prompt.", metavar="TEXT", rich_help_panel=_INPUT)
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
    raw: Annotated[
        bool, typer.Option("--raw", help="Plain text: leave out the chat template.", rich_help_panel=_INPUT)
    ] = False,
    input_file: options.Input = None,
    output_file: options.BatchOutput = None,
    slots: options.Slots = None,
    ordered: options.Ordered = False,
    overwrite: options.Overwrite = False,
    shard: options.ShardOf = None,
    max_tokens: options.MaxTokens = None,
    steps: options.Steps = None,
    entropy_bound: options.EntropyBound = None,
    t_min: options.TMin = None,
    t_max: options.TMax = None,
    stability: options.Stability = None,
    confidence: options.Confidence = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    greedy: options.Greedy = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    think: options.Think = None,
    logprobs: options.Logprobs = None,
    logprob_ids: options.LogprobIds = None,
    logprobs_of: options.LogprobsOf = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="text (the default), json (one completion) or jsonl (a line a token).",
            metavar="text|json|jsonl",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    draft: Draft = "auto",
    slow: Slow = None,
    trace: TraceFile = None,
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = None,
    dtype: options.DType = None,
    offline: options.Offline = None,
    denoiser: options.Denoiser = None,
    graphs: options.Graphs = None,
    max_context: options.MaxContext = None,
    config: options.Config = None,
    assignments: options.Set = None,
    no_config: options.NoConfig = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Generate text from a prompt.

    \b
    dgen generate --prompt "Tell me a story about a brave fox."
    dgen generate -p "7 + 5" --format jsonl | jq 'select(.type=="token").logprob'
    dgen generate --prompt "Write a haiku about the moon." --seed 7 --format json
    dgen generate -m google/diffusiongemma-26B-A4B-it --prompt-file question.txt
    dgen generate --input prompts.jsonl --output answers.jsonl
    """
    del debug  # read by main, which handles failures
    stdout, stderr = standard_streams()
    layers = options.settings_layers(
        config,
        no_config,
        assignments,
        # First, so that a temperature flag beside --greedy is seen as a contradiction.
        greedy=greedy,
        max_tokens=max_tokens,
        steps=steps,
        entropy_bound=entropy_bound,
        t_min=t_min,
        t_max=t_max,
        stability=stability,
        confidence=confidence,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=[from_argv(text, "--stop") for text in stop or []],
        think=think,
        logprobs=logprobs,
        logprob_ids=logprob_ids,
        logprobs_of=logprobs_of,
        model=model,
        revision=revision,
        device=device,
        dtype=dtype,
        offline=offline,
        slots=slots,
        denoiser=denoiser,
        graphs=graphs,
        max_context=max_context,
    )
    sink = Sink(
        stdout,
        stderr,
        format=parse_format("text" if output_format is None else output_format),
        quiet=quiet,
        verbose=verbose,
        color=wants_color(stderr),
    )
    batch_only = {
        "--output": output_file,
        "--slots": slots,
        "--ordered": ordered,
        "--overwrite": overwrite,
        "--shard": shard,
    }
    if input_file is not None:
        early = resolve(layers, partial=True)
        single_only = {
            "--prompt": prompt,
            "--prompt-file": prompt_file,
            "--format": output_format,
            "--draft": draft != "auto",
            "--slow": slow,
            "--trace": trace,
        }
        hint = (
            "Leave one of them out: a batch takes its prompts from the file and writes a JSON record a line."
        )
        _refuse_given(single_only, "does not go with --input", hint=hint)
        from dgen.cli.batch import run_batch

        code = run_batch(
            sink,
            layers,
            source=input_file,
            output=output_file,
            ordered=ordered,
            overwrite=overwrite,
            shard=shard,
            system=from_argv(system, "--system"),
            raw=raw,
            verbose=verbose,
        )
        if code:
            raise typer.Exit(code)
        return
    _refuse_given(batch_only, "needs --input", hint="Add --input FILE.jsonl, a file of prompts.")
    sink.check()
    if output_format == "jsonl":
        # A line a token without its log-probability would be of no use.
        layers.insert(0, Layer("--format jsonl", {"logprobs": 0}))
    # What is wrong with the command line is said before anything is loaded.
    early = resolve(layers, partial=True)
    text = read_prompt(prompt, prompt_file, waiting=sink.note)
    system = from_argv(system, "--system")
    check_prompt(prompt=text, system=system, think=early.settings.think, raw=raw)
    if sink.is_text and early.settings.logprobs is not None and trace is None:
        sink.warn("log-probabilities are not shown as text: add --format jsonl or json")
    with Watch(sink, draft=draft, slow=slow, trace=trace) as watch:
        code = _answer(sink, watch, layers, text, system=system, raw=raw, verbose=verbose)
    if code:
        raise typer.Exit(code)


def parse_format(name: str) -> Format:
    """The value of --format; SettingsError for one that is none."""
    for known in get_args(Format):
        if name == known:
            return known
    raise SettingsError(
        f"--format must be one of {', '.join(get_args(Format))}, not '{name}'", hint="The default is text."
    )


def _refuse_given(given: Mapping[str, object], reason: str, *, hint: str) -> None:
    for name, value in given.items():
        if value not in (None, False):
            raise UsageError(f"{name} {reason}", hint=hint)


def _answer(
    sink: Sink, watch: Watch, layers: list[Layer], text: str, *, system: str | None, raw: bool, verbose: bool
) -> int:
    with Progress(sink) as progress:
        loaded = load_generator(progress, layers)
        generator = loaded.generator
        progress.encoding(text)
        job = generator.job(text, system=system, raw=raw)
        progress.pause()
        tell_model(sink, generator.resolved)
        if verbose:
            for line in setup_lines(loaded, job.resolved):
                sink.detail(line)
        prepared = loaded.prepare(progress)
        if verbose:
            progress.pause()
            for line in prepared:
                sink.detail(line)
        sink.begin(
            vocabulary=generator.checkpoint.vocabulary,
            request_id=job.request_id,
            logprobs_of=job.request.logprobs_of,
        )
        with Interruption(generator.engine.interrupt) as interruption:
            watch.begin(generator, job, is_over=lambda: interruption.happened)
            follow(generator.run(job), sink, watch, progress, prompt_tokens=len(job.request.prompt_ids))
        watch.close()
    completion = job.completion
    assert completion is not None
    sink.completion(generator.record(job))
    if verbose or sink.is_text:
        sink.note(summary(job))
    sink.close()
    if watch.failure is not None:
        sink.error(watch.failure)
        return watch.failure.exit_code
    if completion.finish_reason == "error":
        sink.error(DgenError(completion.error or "the request failed", hint=completion.error_hint))
        return 1
    return interruption.exit_code if completion.finish_reason == "interrupted" else 0
