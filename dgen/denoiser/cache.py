"""The KV of all slots, allocated once: each slot has a length of its own, sliding layers keep a ring.

Knows sizes and tensors; what goes in and out is `kernels.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgen.denoiser.tiles import ring_unit
from dgen.denoiser.weights import LayerWeights


class SlotCache:
    """Keys and values of every layer.

    Attributes:
        layers: (keys, values) of each layer, [slots, kv heads, capacity, D]; position p lies at p % capacity.
        lengths: int64 [slots + 1], positions that each slot's prefix has; the spare slot behind them stays at 0.
    """

    def __init__(
        self, layers: Sequence[LayerWeights], *, num_slots: int, max_context: int, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        self.layers: list[tuple[Tensor, Tensor]] = []
        for layer in layers:
            shape = (num_slots, layer.kv_heads, _capacity(layer, max_context), layer.head_dim)
            keys, values = (torch.zeros(shape, dtype=layer.qkv.dtype, device=device) for _ in range(2))
            self.layers.append((keys, values))
        self.lengths = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)

    def copy(self, source: int, target: int) -> None:
        """Give the slot `target` the prefix of `source`; waits for the device, to copy no more than there is."""
        held = int(self.lengths[source])
        for keys, values in self.layers:
            # A ring that is not full yet, as a plain cache, begins at its first place.
            keys[target, :, :held].copy_(keys[source, :, :held])
            values[target, :, :held].copy_(values[source, :, :held])
        self.lengths[target] = held


def bytes_per_slot(layers: Sequence[LayerWeights], max_context: int) -> int:
    """Bytes of one slot's keys and values."""
    return sum(
        2 * layer.kv_heads * _capacity(layer, max_context) * layer.head_dim * layer.qkv.itemsize
        for layer in layers
    )


def _capacity(layer: LayerWeights, max_context: int) -> int:
    return capacity(layer.window, max_context, unit=ring_unit(layer))


def capacity(window: int, max_context: int, *, unit: int) -> int:
    """Positions that a slot keeps of a layer.

    A row sees itself and window - 1 positions before it: more of a prefix is never read. A ring ends with a whole block
    of `unit` keys, one at least, since blocks are read whole; what no position reaches the end of is no ring.
    """
    return min(max_context, -(-max(1, window - 1) // unit) * unit)
