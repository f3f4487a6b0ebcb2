"""What a bench runs on: the model of a choice, in an engine that is ready for what is demanded of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dgen.cli.account import BUILTIN_NOTE
from dgen.cli.bench_model import Choice
from dgen.cli.bench_output import teller
from dgen.cli.interruption import Unswallowed
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink
from dgen.errors import SettingsError

if TYPE_CHECKING:
    from dgen.bench.measure import Bench
    from dgen.bench.subject import Stand, Subject
    from dgen.checkpoint.fit import Fit


@dataclass(frozen=True, slots=True)
class Demand:
    """What a bench will run: every batch behind every prompt.

    Args:
        batches: requests at a time.
        prompts: their lengths; None is one as long as a canvas.
        max_context: positions of a slot; None for what the requests take.
        tokens: of each answer; None for the canvases that a bench of steps commits.
    """

    batches: tuple[int, ...] = (1,)
    prompts: tuple[int, ...] | None = None
    max_context: int | None = None
    tokens: int | None = None

    def context(self, subject: Subject) -> int:
        """Positions of a slot.

        Raises:
            SettingsError: the model has no room for the requests, or --max-context has none.
        """
        from dgen.bench.step_suite import CANVASES

        length = subject.canvas_len
        canvases = CANVASES if self.tokens is None else -(-self.tokens // length)
        hint = "Shorten --prompt-tokens" + ("." if self.tokens is None else ", or take fewer --tokens.")
        need = subject.check(prompt=max(self.prompts or (length,)), canvases=canvases, hint=hint)
        if self.max_context is not None and self.max_context < need:
            raise SettingsError(
                f"--max-context {self.max_context} is too small: {need} positions are needed",
                hint=f"Give --max-context {need}, or leave it out.",
            )
        return self.max_context or need


class Bed:
    """Context manager around a bench: the model is in memory, progress is shown, and what is found is told.

    Whatever can be refused is refused before a weight is read or made.

    Attributes:
        subject: the model. stand: it in an engine, with slots for the largest batch. bench: how to time.
        environment: of the report.

    Raises:
        SettingsError: the model has no room for the demand, no such denoiser runs here, or memory is too small.
        CheckpointError: as in `dgen.checkpoint.load`.
    """

    def __init__(self, sink: Sink, choice: Choice, demand: Demand, *, repeats: int | None) -> None:
        self._sink, self._choice, self._demand, self._repeats = sink, choice, demand, repeats
        self._progress = Progress(sink)

    def __enter__(self) -> Bed:
        self._progress.__enter__()
        try:
            with Unswallowed():
                self._open()
        except BaseException as error:
            self._progress.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def note(self, text: str) -> None:
        """A line on stderr, clear of the progress."""
        self._progress.pause()
        self._sink.note(text)

    def _open(self) -> None:
        tell = teller(self._sink, self._progress)
        tell("importing torch and transformers")
        from dgen.bench.environment import environment
        from dgen.bench.measure import Bench
        from dgen.bench.subject import Subject
        from dgen.checkpoint.memory import free_memory

        outline = self._choice.outline()
        context = self._demand.context(Subject(outline.skeleton, self._choice.name))
        self._refuse_engine(outline, context)
        if self._choice.is_default:
            self.note(BUILTIN_NOTE)
        self.subject: Subject = self._subject(tell)
        self.environment: dict[str, Any] = environment(self.subject.device)
        for name, value in self.environment.items():
            self._sink.detail(f"{name}: {value}")
        self.bench: Bench = Bench.on(self.subject.device, self._repeats, free_memory, tell)
        self.stand: Stand = self._stand(context)

    def _refuse_engine(self, outline: Fit, context: int) -> None:
        """Raise what the denoiser would, once the weights were there."""
        from dgen.denoiser.choice import takes_fused
        from dgen.denoiser.need import need_of

        model, device = outline.skeleton, outline.device
        fused = takes_fused(model, self._choice.settings.denoiser, device=device)
        if fused and device.type == "cuda":
            need = need_of(model, fused=True, num_slots=max(self._demand.batches))
            left = outline.free - outline.need[outline.dtype]
            # Weights that are too large are refused in words of their own when they are read.
            if 0 <= left < need.bytes(context):
                raise need.refusal(context, left, canvas_len=model.config.canvas_length)

    def _subject(self, tell: Any) -> Subject:
        from dgen.bench.subject import Subject
        from dgen.checkpoint import load

        settings = self._choice.settings
        if self._choice.architecture is not None:
            tell("making random weights")
            return Subject.of_architecture(
                self._choice.architecture, device=settings.device, dtype=settings.dtype
            )
        tell("loading the checkpoint")
        checkpoint = load(
            settings.model,
            revision=settings.revision,
            device=settings.device,
            dtype=settings.dtype,
            offline=settings.offline,
            progress=self._progress.amount,
        )
        return Subject.of_checkpoint(checkpoint)

    def _stand(self, context: int) -> Stand:
        from dgen.bench.subject import Stand
        from dgen.sampler import kernels_for

        settings = self._choice.settings
        stand = Stand.make(
            self.subject,
            kernels_for(settings.kernel, self.subject.device),
            self.bench.timer,
            denoiser=settings.denoiser,
            graphs=settings.graphs,
            num_slots=max(self._demand.batches),
            max_context=context,
            progress=self.bench.progress,
        )
        for line in stand.told:
            self._sink.detail(line)
        self._sink.detail(f"ready after {stand.ready:.1f} s")
        return stand

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, value, trace)
