"""`dgen bench step`: a denoising step of a whole model, in parts, beside its floor and transformers' generate."""

from __future__ import annotations

from typing import Annotated

import typer

from dgen.bench.settings import STEP, StepSettings
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
from dgen.cli.bench_output import Compare, OutputFormat, is_json, open_sink, publish, repeats_of


def step(
    arch: Arch = None,
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = None,
    dtype: options.DType = None,
    offline: options.Offline = None,
    denoiser: DenoiserName = None,
    graphs: Graphs = None,
    prompt_tokens: PromptTokens = "1024",
    batch: Batch = "1",
    max_context: MaxContext = None,
    peer: Peer = "transformers",
    repeats: Annotated[
        str | None,
        typer.Option(
            "--repeats",
            metavar="N",
            help="Timed repeats of every figure.",
            show_default="on CUDA 50, on a CPU 3",
        ),
    ] = None,
    output_format: OutputFormat = "table",
    compare: Compare = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Time a denoising step: what a card will do before 52 GB are fetched, and where the time goes.

    \b
    dgen bench step --arch 26b-a4b
    dgen bench step --arch 26b-a4b --prompt-tokens 1024,32768 --batch 1,4,8
    dgen bench step --arch 26b-a4b --denoiser reference --peer none
    dgen bench step --model builtin --format json > old.json
    dgen bench step --model builtin --compare old.json

    A step is the engine's own, sampler and host included, by the wall clock.
    Its parts are timed alone, on the device; what lies between both is the
    host's. A prefill reads one prompt; a commit adds a canvas of each request.
    The peer is transformers' generate (eager, dynamic cache) on the same
    weights, from one decoder pass to the next.
    """
    del debug  # read by main, which handles failures
    as_json = is_json(output_format)
    check_peer(peer)
    batches, prompts = sizes(batch, prompt_tokens)
    context, times = context_of(max_context), repeats_of(repeats)
    choice = Choice.of(
        arch, denoiser=denoiser, graphs=graphs,
        model=model, revision=revision, device=device, dtype=dtype, offline=offline,
    )  # fmt: skip
    old = None
    if compare is not None:
        from dgen.bench.compare import read_report

        old = read_report(compare, schema=STEP, same={"model": choice.name})
    sink = open_sink(as_json=as_json, quiet=quiet, verbose=verbose)
    demand = Demand(batches, prompts, context)
    with Bed(sink, choice, demand, repeats=times) as bed:
        from dgen.bench.suite import run_step

        stand = bed.stand
        settings = StepSettings(
            **stand.settings(), batches=batches, prompts=prompts, peer=peer, repeats=times
        )
        report = run_step(settings, bed.bench, stand, bed.environment)
    publish(sink, report, as_json=as_json, old=old)
