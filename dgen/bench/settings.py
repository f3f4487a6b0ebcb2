"""What each bench was asked for, as plain data: a report's `settings`, and what an older run must share with it.

Standard library alone, so that a wrong command line or file is told before anything is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT, SAMPLER, STEP, GENERATE = (
    f"dgen.bench.{name}" for name in ("v2", "sampler.v2", "step.v1", "generate.v1")
)
"""Schemas of the JSON."""

CUDA_REPEATS, CPU_REPEATS = 50, 3
"""Timed repeats of a figure, where none are asked for."""


@dataclass(frozen=True, slots=True)
class ShortSettings:
    """Of `dgen bench`. `model_canvas` and `dtype` are the model's own; `canvas` and `vocab` are the sampler's."""

    canvas: int
    vocab: int
    repeats: int | None
    device: str
    kernels: str
    denoiser: str
    model: str
    revision: str | None
    dtype: str
    model_canvas: int


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Of `dgen bench sampler`: every combination of rows, vocabularies, dtypes and top-k is timed.

    Attributes:
        hidden: width of the hidden states of the chain.
        compiled: whether torch.compile of the references is among the peers.
        repeats: timed calls of each body, None for the defaults.
        only: part of the keys of the figures to time; empty for all.
    """

    rows: tuple[int, ...]
    vocabs: tuple[int, ...]
    dtypes: tuple[str, ...]
    top_ks: tuple[int, ...]
    hidden: int
    compiled: bool
    repeats: int | None
    device: str
    kernels: str
    only: str = ""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What `dgen bench step` and `dgen bench generate` share: a model, and every batch with every prompt length.

    Attributes:
        peer: "transformers" or "none".
        num_slots, max_context: of the denoiser.
    """

    model: str
    revision: str | None
    dtype: str
    model_canvas: int
    device: str
    kernels: str
    denoiser: str
    graphs: bool
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    num_slots: int
    max_context: int
    peer: str
    repeats: int | None


@dataclass(frozen=True, slots=True)
class StepSettings(ModelSettings):
    """Of `dgen bench step`."""


@dataclass(frozen=True, slots=True)
class GenerateSettings(ModelSettings):
    """Of `dgen bench generate`: `tokens` a request, exactly `steps` a canvas; `logprobs` adds a body that keeps K."""

    tokens: int
    steps: int
    logprobs: int | None
