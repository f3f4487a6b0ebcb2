"""`dgen bench sampler`: the sampler's kernels over many shapes, beside their floors and their peers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dgen.cli import options
from dgen.cli.bench import bench_app, draw, is_json, teller, whole
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink, standard_streams, wants_color
from dgen.errors import SettingsError

if TYPE_CHECKING:
    from dgen.bench.sampler_report import SamplerReport, SamplerSettings

__all__ = ["bench_app"]

DTYPES = ("float32", "bfloat16", "float16")
_DEVICES = ("auto", "cpu", "cuda")
_MAX_TOPK = 1024


@bench_app.command("sampler")
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
            help="Timed repeats of every figure.  [default: on CUDA 50, on a CPU 3]",
        ),
    ] = None,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compiled/--no-compiled",
            help="Time torch.compile of the references too; it compiles once for each figure."
            "  [default: on CUDA]",
            show_default=False,
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
    output_format: Annotated[
        str, typer.Option("--format", help="table, or json with every sample and the environment.")
    ] = "table",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Time the sampler's kernels alone, over many shapes.

    \b
    dgen bench sampler
    dgen bench sampler --rows 256 --vocab 262144 --top-k 20 --no-compiled
    dgen bench sampler --only bfloat16.softcap.softmax
    dgen bench sampler --rows 4 --vocab 4096 --device cpu --format json > sampler.json

    Row statistics and the stash stand beside their floors (the bytes that they can't avoid to move, at this machine's
    copy bandwidth), the torch reference and torch.compile of it, in the same run. On CUDA the chain of LM head,
    row statistics and softmax @ embedding is timed too. No model is loaded.
    """
    del debug  # read by main, which handles failures
    as_json = is_json(output_format)
    if device not in _DEVICES:
        raise SettingsError(f"unknown device '{device}' (--device)", hint=f"One of {', '.join(_DEVICES)}.")
    shapes = {
        "rows": _numbers("rows", rows, low=1, high=2**16),
        "vocabs": _numbers("vocab", vocab, low=2, high=2**30),
        "top_ks": _numbers("top-k", top_k, low=0, high=_MAX_TOPK),
    }
    width = whole("hidden", hidden, low=16, high=2**16)
    times = None if repeats is None else whole("repeats", repeats, low=1, high=10_000)
    dtypes = _dtypes(dtype)
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
    with Progress(sink) as progress:
        tell = teller(sink, progress)
        tell("importing torch")
        import torch

        from dgen.bench.sampler_report import SamplerSettings

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
        report = _measure(sink, settings, tell)
    if as_json:
        sink.document(json.dumps(report.record(), indent=1, allow_nan=False))
    else:
        sink.document(draw(report.headline(), [report.table()]))
    sink.close()


def _measure(sink: Sink, settings: SamplerSettings, tell: Callable[[str], None]) -> SamplerReport:
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


def _numbers(name: str, text: str, *, low: int, high: int) -> tuple[int, ...]:
    """Comma-separated whole numbers, each once."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(whole(name, part, low=low, high=high) for part in parts))


def _dtypes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in DTYPES:
            raise SettingsError(f"unknown dtype '{name}' (--dtype)", hint=f"One of {', '.join(DTYPES)}.")
    return names
