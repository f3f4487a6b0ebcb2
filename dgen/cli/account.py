"""What is told of a request: its steps and text while it runs, a line when it is over, and what it runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dgen.cli.loading import Loaded
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink
from dgen.cli.values import count_of, line
from dgen.cli.watch import Watch
from dgen.settings import Resolved

if TYPE_CHECKING:
    from dgen.engine.events import Event
    from dgen.job import Job
    from dgen.output.text import Piece


BUILTIN_NOTE = "Built-in demo checkpoint; the real one: --model google/diffusiongemma-26B-A4B-it"


def tell_model(sink: Sink, resolved: Resolved) -> None:
    """Say that nobody named a model; for when the run goes ahead, as an error should stand alone."""
    if resolved.sources["model"] == "default":
        sink.note(BUILTIN_NOTE)


def follow(
    items: Iterable[Event | Piece], sink: Sink, watch: Watch, progress: Progress, *, prompt_tokens: int
) -> None:
    """Show one request's events as they happen, and write its text."""
    from dgen.engine.events import Denoised, Prefilled
    from dgen.output.text import Piece

    progress.update(f"reading the prompt ({prompt_tokens} tokens)")
    for item in items:
        if watch.shows_canvas and isinstance(item, Denoised):
            progress.pause()
        watch.see(item)
        if isinstance(item, Piece):
            progress.clear()
            sink.piece(item)
        elif isinstance(item, Prefilled):
            progress.update("denoising")
        elif isinstance(item, Denoised) and not watch.shows_canvas:
            accepted = sum(item.accepted)
            progress.update(
                f"canvas {item.canvas + 1}, step {item.step + 1}: {accepted}/{len(item.accepted)} accepted, "
                f"mean entropy {item.mean_entropy:.3f}"
            )


def setup_lines(loaded: Loaded, resolved: Resolved) -> Iterator[str]:
    """What was loaded, and each setting with its source."""
    from dgen.denoiser.choice import why_reference

    generator = loaded.generator
    checkpoint = generator.checkpoint
    yield f"imports {loaded.import_seconds:.2f} s, checkpoint {generator.load_seconds:.2f} s"
    yield (
        f"model {checkpoint.name} on {checkpoint.device} in {str(checkpoint.dtype).removeprefix('torch.')}, "
        f"denoiser {generator.denoiser.name}, sampler kernels {generator.kernels.name}, "
        f"CPU threads {loaded.threads}"
    )
    if resolved.settings.denoiser == "auto" and (reason := why_reference(checkpoint.model)):
        yield f"denoiser reference because {reason}"
    for name in resolved.sources:
        yield f"  {line(name, resolved)}"


def summary(job: Job) -> str:
    """A finished job in one line."""
    completion = job.completion
    assert completion is not None
    seconds = job.timing(0.0)["denoise"] or 0.0
    rate = f" · {len(completion.tokens) / seconds:.0f} tokens/s" if seconds else ""
    return (
        f"{completion.finish_reason} · {count_of(len(completion.tokens), 'token')} · "
        f"{count_of(len(completion.steps), 'canvas', 'canvases')} · {count_of(sum(completion.steps), 'step')}{rate} · "
        f"seed {completion.seed}"
    )
