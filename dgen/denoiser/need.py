"""What slots take beside the weights: the bytes of a context, and the context that bytes hold.

Reads shapes and dtypes alone, so that a model without memory (meta tensors) can be reckoned too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgen.denoiser.cache import bytes_per_slot
from dgen.denoiser.weights import LayerWeights, SignalWeights, signal_weights, stack_weights
from dgen.denoiser.workspace import workspace_bytes
from dgen.errors import SettingsError

PREFILL_CHUNK = 4096
"""Prompt tokens of a causal pass: enough to keep every expert's weights busy, few enough for the buffers."""
RESERVE = 2**30
"""Bytes of a card left alone: libraries' own buffers, graphs, and what a step needs for a moment. On an H200 eight
slots of the 26B architecture took 0.8 GB of it while steps were captured."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of `num_slots` slots.

    Attributes:
        layers: of the decoder; encoder and decoder share their cache.
        work: bytes of everything but keys and values, by the context's positions.
    """

    layers: Sequence[LayerWeights]
    num_slots: int
    work: Callable[[int], int]

    def bytes(self, positions: int) -> int:
        """For a context of that many positions in each slot."""
        return self.num_slots * bytes_per_slot(self.layers, positions) + self.work(positions)

    def longest(self, most: int, free: int) -> int:
        """The largest context up to `most` that `free` bytes hold; 0 where not even its buffers fit."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes(middle) <= free:
                low = middle
            else:
                high = middle - 1
        return low

    def refusal(self, positions: int, free: int, *, canvas_len: int) -> SettingsError:
        """What to say where `free` bytes don't hold a context of `positions`, with the one that they do."""
        fits = self.longest(positions, free)
        hint = f"--max-context {fits} fits." if fits >= 2 * canvas_len else "Free some memory."
        slots = "slot" if self.num_slots == 1 else "slots"
        return SettingsError(
            f"a context of {positions} positions in {self.num_slots} {slots} needs "
            f"{self.bytes(positions) / 1e9:.1f} GB beside the weights, and {free / 1e9:.1f} GB are free",
            hint=hint if self.num_slots == 1 else f"{hint} Or take fewer --slots.",
        )

    def of_slot(self, most: int) -> tuple[int, int]:
        """Bytes of one slot's sliding layers, and of each position in its full ones, near a context of `most`."""
        whole = bytes_per_slot(self.layers, most)
        each = bytes_per_slot(self.layers, most + 1) - whole
        return whole - most * each, each


def check_context(positions: int, canvas_len: int) -> None:
    """Raises SettingsError: a context that no prompt fits into beside a canvas."""
    if positions <= canvas_len:
        raise SettingsError(
            f"a context of {positions} positions holds no prompt and a canvas of {canvas_len}",
            hint=f"Leave --max-context out, or give {canvas_len + 1} and more.",
        )


def most_rows(num_slots: int, canvas_len: int) -> int:
    """Rows of the largest pass: a chunk of a prompt, or the canvases of all slots."""
    return max(PREFILL_CHUNK, num_slots * canvas_len)


def fused_need(
    layers: Sequence[LayerWeights],
    signal: SignalWeights,
    head: Tensor,
    *,
    num_slots: int,
    canvas_len: int,
) -> Need:
    """Of the fused denoiser: KV, buffers, logits, the softmax, self-conditioning; `head` [V, H]."""
    vocab_size, hidden = head.shape
    fixed = num_slots * canvas_len * head.itemsize * (2 * vocab_size + hidden) + RESERVE
    rows = most_rows(num_slots, canvas_len)

    def work(positions: int) -> int:
        return workspace_bytes(layers, signal, max_rows=rows, max_context=positions) + fixed

    return Need(layers, num_slots, work)


def reference_need(
    layers: Sequence[LayerWeights], *, num_slots: int, canvas_len: int, vocab_size: int
) -> Need:
    """Of the reference denoiser: KV, all slots' logits in fp32 twice (each slot's, and joined), one slot's softmax.

    What transformers takes for a moment within a pass comes on top.
    """
    fixed = 4 * vocab_size * canvas_len * (2 * num_slots + 3)
    return Need(layers, num_slots, lambda _: fixed)


def need_of(model: Any, *, fused: bool, num_slots: int) -> Need:
    """Of a DiffusionGemmaForBlockDiffusion in the dtype that it has; matrices become views as in `weights`."""
    layers = stack_weights(model.model.decoder).layers
    canvas_len, head = model.config.canvas_length, model.lm_head.weight
    if not fused:
        return reference_need(layers, num_slots=num_slots, canvas_len=canvas_len, vocab_size=len(head))
    return fused_need(
        layers,
        signal_weights(model.model.decoder.self_conditioning),
        head,
        num_slots=num_slots,
        canvas_len=canvas_len,
    )
