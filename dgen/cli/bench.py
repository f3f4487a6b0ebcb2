"""`dgen bench`: a short form of sampler, step and requests, timed beside their floors and their peers."""

from __future__ import annotations

from typing import Annotated

import typer

from dgen.bench.settings import SHORT, ShortSettings
from dgen.cli import options
from dgen.cli.bench_bed import Bed, Demand
from dgen.cli.bench_model import Arch, Choice, DenoiserName, Graphs
from dgen.cli.bench_output import Compare, OutputFormat, is_json, open_sink, publish, repeats_of, whole

_PATIENCE = 2**24
"""Logits that a CPU is given without a word: all figures of so many take it less than a minute."""

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
            help="Timed repeats of every figure.",
            show_default="on CUDA 50, on a CPU 3; of requests 5 and 3",
        ),
    ] = None,
    arch: Arch = None,
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = None,
    dtype: options.DType = None,
    offline: options.Offline = None,
    denoiser: DenoiserName = None,
    graphs: Graphs = None,
    output_format: OutputFormat = "table",
    compare: Compare = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Time the sampler, a denoising step and whole requests on this machine, in a short form.

    \b
    dgen bench --canvas 256
    dgen bench --canvas 256 --format json > new.json
    dgen bench --canvas 256 --compare new.json
    dgen bench --arch 26b-a4b
    dgen bench --device cpu --vocab 32768 --repeats 10

    Every figure stands beside its floor (bytes that it can't avoid to move,
    at this machine's copy bandwidth, or operations at its rate of matrix
    products) and beside its peers of the same run: torch, and transformers'
    own ops and generate. The commands below go further, each for itself.
    """
    del debug  # read by main, which handles failures
    if context.invoked_subcommand is not None:
        return
    as_json = is_json(output_format)
    rows = whole("canvas", canvas, low=1, high=2**16)
    columns = whole("vocab", vocab, low=2, high=2**31 - 1)
    times = repeats_of(repeats)
    choice = Choice.of(
        arch, denoiser=denoiser, graphs=graphs,
        model=model, revision=revision, device=device, dtype=dtype, offline=offline,
    )  # fmt: skip
    old = None
    if compare is not None:
        from dgen.bench.compare import read_report

        old = read_report(compare, schema=SHORT, same={"canvas": rows, "vocab": columns})
    sink = open_sink(as_json=as_json, quiet=quiet, verbose=verbose)
    with Bed(sink, choice, Demand(), repeats=times) as bed:
        from dgen.bench.suite import run_short

        if bed.subject.device.type == "cpu" and rows * columns > _PATIENCE:
            bed.note(
                f"{rows} x {columns} logits take a CPU a minute or more; for a short run: --canvas 16 --vocab 32768"
            )
        stand = bed.stand
        settings = ShortSettings(
            canvas=rows,
            vocab=columns,
            repeats=times,
            device=str(bed.subject.device),
            kernels=stand.kernels.name,
            denoiser=stand.denoiser.name,
            model=bed.subject.name,
            revision=bed.subject.revision,
            dtype=bed.subject.dtype,
            model_canvas=bed.subject.canvas_len,
        )
        report = run_short(settings, bed.bench, stand, bed.environment)
    publish(sink, report, as_json=as_json, old=old)
