"""The contract between the engine and whatever turns a canvas into logits.

A denoiser owns the model, the KV cache of each slot and each slot's self-conditioning; it never samples and
never sees text. `reference` is transformers' own forward and what every other body is held against. The engine
reads the attributes below and otherwise can't tell which body it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Tell = Callable[[str], None]
"""Takes a line about something that was made ready, or was not, and why."""


class Denoiser(Protocol):
    """Slots of KV and self-conditioning behind eight verbs; ids and slots are int64 on `device`."""

    name: str
    device: torch.device
    vocab_size: int
    canvas_len: int
    num_slots: int
    max_context: int
    softcap: float | None
    """Cap which the sampler still has to apply to the logits of `denoise`; None: they are capped already."""
    probs_dtype: torch.dtype | None
    """dtype of the softmax that `condition` wants from the sampler; None: it derives its own from the logits."""
    capturable: bool
    """Whether `denoise` and `condition` read nothing back, so that a CUDA graph may hold them. The slot `num_slots`
    is then a spare one without a prefix, which pads a batch."""

    def prepare(self, tell: Tell | None = None) -> None:
        """Compile and capture what the passes need, so that the first one is as fast as the others."""

    def prefill(self, slot: int, ids: torch.Tensor) -> None:
        """Causal pass over a prompt [n] that writes the slot's KV; the slot must be released or fresh."""

    def extend(self, slot: int, ids: torch.Tensor) -> None:
        """Causal pass over ids [n] behind what the slot holds: `prefill` is this on an empty slot."""

    def copy(self, source: int, target: int) -> None:
        """Give the slot `target`, released or fresh, the KV of `source`; what either reads next leaves the other be."""

    def denoise(self, slots: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        """One bidirectional pass over `canvas` [m, canvas_len] of `slots` [m] -> logits [m * canvas_len, vocab]."""

    def condition(
        self,
        slots: torch.Tensor,
        logits: torch.Tensor,
        temps: torch.Tensor,
        probs: torch.Tensor | None,
        pinned: torch.Tensor,
    ) -> None:
        """Keep softmax(logits / T) @ E * embed_scale as the slots' self-conditioning of the next pass.

        logits [m * canvas_len, vocab] as sampled from (filtered, softcapped where `softcap` is None), temps fp32
        [m], probs in `probs_dtype` or None, pinned bool [m, canvas_len]: those rows are zero.
        """

    def commit(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """Causal pass over converged canvases [m, canvas_len] that appends their KV; drops the self-conditioning."""

    def release(self, slot: int) -> None:
        """Forget everything that the slot holds; harmless on a fresh slot."""
