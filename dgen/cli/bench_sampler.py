"""`dgen bench sampler`: the sampler's kernels over many shapes, beside their floors and their peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dgen.bench.settings import SAMPLER, SamplerSettings
from dgen.cli import options
from dgen.cli.bench_output import (
    Compare,
    OutputFormat,
    is_json,
    numbers,
    open_sink,
    publish,
    repeats_of,
    teller,
    whole,
)
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink
from dgen.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from dgen.bench.report import Report

DTYPES = ("float32", "bfloat16", "float16")
_DEVICES = ("auto", "cpu", "cuda")
_MAX_TOPK = 1024


def sampler(
    rows: Annotated[
        str, typer.Option("--rows", metavar="N,N", help="Rows of logits: one figure for each.")
    ] = "256,1024,2048",
    vocab: Annotated[
        str, typer.Option("--vocab", metavar="N,N", help="Columns of logits: one figure for each.")
    ] = "262144,151669",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="NAME,NAME", help=f"Of the logits: {', '.join(DTYPES)}.")
    ] = "float32,bfloat16",
    top_k: Annotated[
        str, typer.Option("--top-k", metavar="K,K", help="Largest logits in the stash: one figure for each.")
    ] = "0,1,5,20",
    hidden: Annotated[
        str, typer.Option("--hidden", metavar="N", help="Hidden width, for LM head and softmax @ embedding.")
    ] = "2816",
    repeats: Annotated[
        str | None,
        typer.Option(
            "--repeats",
            metavar="N",
            help="Timed repeats of every figure.",
            show_default="on CUDA 50, on a CPU 3",
        ),
    ] = None,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compiled/--no-compiled",
            help="Time torch.compile of the references too; it compiles once for each figure.",
            show_default="on CUDA",
        ),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            "--only",
            metavar="TEXT",
            help="Figures whose key, as in the JSON, holds this text, such as stash.",
        ),
    ] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help=f"One of {', '.join(_DEVICES)}.")
    ] = "auto",
    output_format: OutputFormat = "table",
    compare: Compare = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Time the sampler's kernels alone, over many shapes.

    \b
    dgen bench sampler
    dgen bench sampler --rows 256 --vocab 262144 --top-k 20 --no-compiled
    dgen bench sampler --only bfloat16.softcap.softmax
    dgen bench sampler --rows 4 --vocab 4096 --format json > sampler.json

    Row statistics and the stash stand beside their floors (the bytes that they
    can't avoid to move, at this machine's copy bandwidth), the torch reference
    and torch.compile of it, in the same run. On CUDA the chain of LM head, row
    statistics and softmax @ embedding is timed too. No model is loaded.
    """
    del debug  # read by main, which handles failures
    as_json = is_json(output_format)
    if device not in _DEVICES:
        raise SettingsError(f"unknown device '{device}' (--device)", hint=f"One of {', '.join(_DEVICES)}.")
    shapes = {
        "rows": numbers("rows", rows, low=1, high=2**16),
        "vocabs": numbers("vocab", vocab, low=2, high=2**30),
        "top_ks": numbers("top-k", top_k, low=0, high=_MAX_TOPK),
    }
    width = whole("hidden", hidden, low=16, high=2**16)
    times = repeats_of(repeats)
    dtypes = _dtypes(dtype)
    old = None
    if compare is not None:
        from dgen.bench.compare import read_report

        old = read_report(compare, schema=SAMPLER, same={"hidden": width})
    sink = open_sink(as_json=as_json, quiet=quiet, verbose=verbose)
    with Progress(sink) as progress:
        tell = teller(sink, progress)
        tell("importing torch")
        import torch

        device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if device == "cuda" and not torch.cuda.is_available():
            raise SettingsError("there is no CUDA device here (--device cuda)", hint="Use --device cpu.")
        from dgen.sampler import kernels_for

        settings = SamplerSettings(
            **shapes,
            dtypes=dtypes,
            hidden=width,
            compiled=device == "cuda" if compiled is None else compiled,
            repeats=times,
            device=device,
            kernels=kernels_for("auto", device).name,
            only=only,
        )
        if not settings.figure_keys():
            every = replace(settings, only="").figure_keys()
            raise UsageError(
                f"--only '{only}' leaves no figure", hint=f"Keys run from {every[0]} to {every[-1]}."
            )
        report = _measure(sink, settings, tell)
    publish(sink, report, as_json=as_json, old=old)


def _measure(sink: Sink, settings: SamplerSettings, tell: Callable[[str], None]) -> Report:
    import torch

    from dgen.bench.environment import environment
    from dgen.bench.sampler_suite import run_sampler_suite
    from dgen.checkpoint.memory import free_memory
    from dgen.sampler import kernels_for

    found = environment(torch.device(settings.device))
    for name, value in found.items():
        sink.detail(f"{name}: {value}")
    kernels = kernels_for(settings.kernels, settings.device)
    return run_sampler_suite(settings, kernels, found, free_memory=free_memory, progress=tell)


def _dtypes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in DTYPES:
            raise SettingsError(f"unknown dtype '{name}' (--dtype)", hint=f"One of {', '.join(DTYPES)}.")
    return names
