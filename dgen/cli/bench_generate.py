"""`dgen bench generate`: whole requests of a fixed number of steps, beside transformers' generate."""

from __future__ import annotations

from typing import Annotated

import typer

from dgen.bench.settings import GENERATE, GenerateSettings
from dgen.cli import options
from dgen.cli.bench_bed import Bed, Demand
from dgen.cli.bench_model import (
    Arch,
    Batch,
    Choice,
    DenoiserName,
    Graphs,
    MaxContext,
    Peer,
    PromptTokens,
    check_peer,
    context_of,
    sizes,
)
from dgen.cli.bench_output import Compare, OutputFormat, is_json, open_sink, publish, repeats_of, whole
from dgen.settings import MAX_TOP_LOGPROBS


def generate(
    arch: Arch = None,
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = None,
    dtype: options.DType = None,
    offline: options.Offline = None,
    denoiser: DenoiserName = None,
    graphs: Graphs = None,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N", help="Tokens of each answer.", rich_help_panel="Sizes")
    ] = "512",
    steps: Annotated[
        str,
        typer.Option(
            "--steps",
            metavar="N",
            help="Denoising steps a canvas; none ends earlier.",
            rich_help_panel="Sizes",
        ),
    ] = "16",
    logprobs: Annotated[
        str | None,
        typer.Option(
            "--logprobs",
            metavar="K",
            help="Time requests that keep K log-probabilities too.",
            rich_help_panel="Sizes",
        ),
    ] = None,
    prompt_tokens: PromptTokens = "1024",
    batch: Batch = "1",
    max_context: MaxContext = None,
    peer: Peer = "transformers",
    repeats: Annotated[str, typer.Option("--repeats", metavar="N", help="Timed runs of every body.")] = "3",
    output_format: OutputFormat = "table",
    compare: Compare = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Time whole requests, from prompt to last token, with a fixed number of steps a canvas.

    \b
    dgen bench generate --arch 26b-a4b --tokens 512 --steps 16
    dgen bench generate --arch 26b-a4b --batch 1,8 --logprobs 20 --peer none
    dgen bench generate --tokens 128 --prompt-tokens 32 --format json > old.json

    Canvases neither converge nor end early, so that all bodies do the same
    work: real text needs fewer or more steps, and tokens/s follow from that.
    `each` is the rate of one request of a batch. The peer is transformers'
    generate (eager, dynamic cache) on the same weights.
    """
    del debug  # read by main, which handles failures
    as_json = is_json(output_format)
    check_peer(peer)
    batches, prompts = sizes(batch, prompt_tokens)
    count = whole("tokens", tokens, low=1, high=2**20)
    per_canvas = whole("steps", steps, low=1, high=10_000)
    kept = None if logprobs is None else whole("logprobs", logprobs, low=0, high=MAX_TOP_LOGPROBS)
    context, times = context_of(max_context), repeats_of(repeats)
    choice = Choice.of(
        arch, denoiser=denoiser, graphs=graphs,
        model=model, revision=revision, device=device, dtype=dtype, offline=offline,
    )  # fmt: skip
    old = None
    if compare is not None:
        from dgen.bench.compare import read_report

        same = {"model": choice.name, "tokens": count, "steps": per_canvas}
        old = read_report(compare, schema=GENERATE, same=same)
    sink = open_sink(as_json=as_json, quiet=quiet, verbose=verbose)
    demand = Demand(batches, prompts, context, tokens=count)
    with Bed(sink, choice, demand, repeats=times) as bed:
        from dgen.bench.suite import run_generate

        stand = bed.stand
        settings = GenerateSettings(
            **stand.settings(), batches=batches, prompts=prompts, peer=peer, repeats=times,
            tokens=count, steps=per_canvas, logprobs=kept,
        )  # fmt: skip
        report = run_generate(settings, bed.bench, stand, bed.environment)
    publish(sink, report, as_json=as_json, old=old)
