"""The model of a bench: its options, and a loaded or random one in an engine that is ready to be timed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgen.checkpoint.architecture import Architecture, read_architecture
from dgen.cli import options
from dgen.cli.account import BUILTIN_NOTE
from dgen.cli.bench_output import numbers, teller, whole
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink
from dgen.errors import SettingsError, UsageError
from dgen.layers import environment_layer
from dgen.settings import SETTINGS, Layer, Settings, resolve

if TYPE_CHECKING:
    from dgen.bench.measure import Bench
    from dgen.bench.subject import Stand, Subject

_PANEL, _SIZES = "Model", "Sizes"
PEERS = ("transformers", "none")
_MOST_BATCH, _MOST_TOKENS = 1024, 2**20

Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="NAME|PATH",
        help="Random weights of these sizes in place of a checkpoint: 26b-a4b, tiny, or a TOML file.",
        rich_help_panel=_PANEL,
    ),
]
DenoiserName = Annotated[
    str | None,
    typer.Option(
        "--denoiser",
        metavar="NAME",
        help="auto, reference or fused.",
        rich_help_panel=_PANEL,
    ),
]
Graphs = Annotated[
    bool | None,
    typer.Option(
        "--graphs/--no-graphs",
        help="Capture steps as CUDA graphs.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
MaxContext = Annotated[
    str | None,
    typer.Option(
        "--max-context",
        metavar="N",
        help="Positions of a slot.",
        show_default="what the prompts need",
        rich_help_panel=_SIZES,
    ),
]
PromptTokens = Annotated[
    str,
    typer.Option(
        "--prompt-tokens",
        metavar="N,N",
        help="Lengths of prompts: figures for each.",
        rich_help_panel=_SIZES,
    ),
]
Batch = Annotated[
    str,
    typer.Option(
        "--batch",
        metavar="N,N",
        help="Requests at a time: figures for each.",
        rich_help_panel=_SIZES,
    ),
]
Peer = Annotated[
    str,
    typer.Option("--peer", metavar="NAME", help="transformers (its generate, eager) or none."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which model, where, in which engine; checked as far as that needs no torch."""

    architecture: Architecture | None
    layers: list[Layer]
    denoiser: str | None
    graphs: bool | None

    @classmethod
    def of(
        cls, arch: str | None, *, denoiser: str | None, graphs: bool | None, **flags: str | bool | None
    ) -> Choice:
        """From a command's options.

        Raises:
            UsageError: --arch beside --model, or something that is no architecture.
            SettingsError: a setting of the run that is none.
        """
        if arch is not None and flags.get("model") is not None:
            raise UsageError("--arch and --model are both given", hint="Leave out one of them.")
        environment = environment_layer(os.environ)
        # A request's settings are the bench's own.
        run = {name: value for name, value in environment.values.items() if SETTINGS[name].scope == "run"}
        layers = [
            Layer(environment.source, run),
            *options.settings_layers(None, True, None, **flags),
        ]
        resolve(layers, partial=True)
        return cls(None if arch is None else read_architecture(arch), layers, denoiser, graphs)

    @property
    def settings(self) -> Settings:
        """Those of the run."""
        return resolve(self.layers, partial=True).settings

    @property
    def name(self) -> str:
        """Of the model, as a report has it."""
        return self.settings.model if self.architecture is None else f"arch {self.architecture.name}"

    @property
    def is_default(self) -> bool:
        """Whether nobody named a model."""
        return self.architecture is None and resolve(self.layers, partial=True).sources["model"] == "default"


def sizes(batch: str, prompt_tokens: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batches and prompt lengths, in the order given."""
    return (
        numbers("batch", batch, low=1, high=_MOST_BATCH),
        numbers("prompt-tokens", prompt_tokens, low=1, high=_MOST_TOKENS),
    )


def context_of(text: str | None) -> int | None:
    """The value of --max-context."""
    return None if text is None else whole("max-context", text, low=2, high=_MOST_TOKENS)


def check_peer(peer: str) -> None:
    """SettingsError for a peer that dgen doesn't have."""
    if peer not in PEERS:
        raise SettingsError(
            f"--peer must be one of {', '.join(PEERS)}, not '{peer}'", hint="The default is transformers."
        )


class Bed:
    """Context manager around a bench: the model is in memory, progress is shown, and what is found is told.

    Attributes:
        subject: the model. bench: how to time. environment: of the report.
    """

    def __init__(self, sink: Sink, choice: Choice, *, repeats: int | None) -> None:
        self._sink, self._choice, self._repeats = sink, choice, repeats
        self._progress = Progress(sink)

    def __enter__(self) -> Bed:
        self._progress.__enter__()
        try:
            self._open()
        except BaseException as error:
            self._progress.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _open(self) -> None:
        tell = teller(self._sink, self._progress)
        tell("importing torch and transformers")
        from dgen.bench.environment import environment
        from dgen.bench.measure import Bench
        from dgen.checkpoint.memory import free_memory

        self.subject: Subject = self._subject(tell)
        self.environment: dict[str, Any] = environment(self.subject.device)
        for name, value in self.environment.items():
            self._sink.detail(f"{name}: {value}")
        self.bench: Bench = Bench.on(self.subject.device, self._repeats, free_memory, tell)

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

    def stand(
        self,
        *,
        batches: tuple[int, ...],
        prompts: tuple[int, ...],
        max_context: int | None = None,
        canvases: int | None = None,
    ) -> Stand:
        """The model in an engine of as many slots as the largest batch.

        Args:
            canvases: that follow a prompt; None for what a bench of steps commits.

        Raises:
            SettingsError: the model has no room for the prompts, or no such denoiser runs here.
        """
        from dgen.bench.step_suite import CANVASES
        from dgen.bench.subject import Stand
        from dgen.sampler import kernels_for

        need = self.subject.check(prompt=max(prompts), canvases=canvases or CANVASES)
        if max_context is not None and max_context < need:
            raise SettingsError(
                f"--max-context {max_context} is too small: {need} positions are needed",
                hint="Leave it out, or shorten --prompt-tokens.",
            )
        settings = self._choice.settings
        stand = Stand.make(
            self.subject,
            kernels_for(settings.kernel, self.subject.device),
            self.bench.timer,
            denoiser=str(self._choice.denoiser or getattr(settings, "denoiser", "auto")),
            graphs=getattr(settings, "graphs", True) if self._choice.graphs is None else self._choice.graphs,
            num_slots=max(batches),
            max_context=max_context or need,
            progress=self.bench.progress,
        )
        if self._choice.is_default:
            self._progress.pause()
            self._sink.note(BUILTIN_NOTE)
        for line in stand.told:
            self._sink.detail(line)
        self._sink.detail(f"ready after {stand.ready:.1f} s")
        return stand

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, value, trace)
