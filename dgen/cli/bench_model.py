"""The model of a bench: its options, and what they choose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dgen.checkpoint.architecture import Architecture, read_architecture
from dgen.checkpoint.target import check_names
from dgen.cli import options
from dgen.cli.bench_output import numbers, whole
from dgen.errors import SettingsError, UsageError
from dgen.layers import environment_layer
from dgen.settings import SETTINGS, Layer, Settings, resolve

if TYPE_CHECKING:
    from dgen.checkpoint.fit import Fit

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

    @classmethod
    def of(cls, arch: str | None, **flags: str | bool | None) -> Choice:
        """From a command's options.

        Raises:
            UsageError: --arch beside --model, something that is no architecture, a device or dtype that is none.
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
        asked = resolve(layers, partial=True).settings
        check_names(asked.device, asked.dtype)
        return cls(None if arch is None else read_architecture(arch), layers)

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

    def outline(self) -> Fit:
        """The model without its weights.

        Raises:
            CheckpointError, UsageError, SettingsError: whatever keeps it from being loaded or made, memory aside.
        """
        from dgen.checkpoint.fit import fit, fit_architecture

        asked = self.settings
        if self.architecture is not None:
            return fit_architecture(self.architecture, device=asked.device, dtype=asked.dtype)
        return fit(
            asked.model,
            revision=asked.revision,
            device=asked.device,
            dtype=asked.dtype,
            offline=asked.offline,
        )


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
