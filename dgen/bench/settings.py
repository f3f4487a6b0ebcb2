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

    def figure_keys(self) -> list[str]:
        """Of all figures that `only` leaves, in order; `chain` stands for the figures of each."""
        found = []
        for vocab in self.vocabs:
            for rows in self.rows:
                for dtype in self.dtypes:
                    for capped in (False, True):
                        found += self._keys_of(f"{rows}x{vocab}", dtype, capped)
                found += [f"chain.{rows}x{vocab}"] if self.device == "cuda" else []
        return [key for key in found if self.only in key]

    def _keys_of(self, shape: str, dtype: str, capped: bool) -> list[str]:
        """Of one kind of logits."""
        kind = f"{shape}.{dtype}{'.softcap' if capped else ''}"
        found = [f"row_stats.{kind}{softmax}" for softmax in ("", ".softmax")]
        if stashed(dtype, capped):
            cases = [
                *((k, "all") for k in self.top_ks),
                (max(self.top_ks), "one"),
                (max(self.top_ks), "none"),
            ]
            found += [f"stash.{kind}.k{k}.{kept}" for k, kept in cases]
        return found


def stashed(dtype: str, capped: bool) -> bool:
    """Whether the stash of such logits is timed: with a softcap or without, as each dtype is met in use."""
    return capped == (dtype != "float32")


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
