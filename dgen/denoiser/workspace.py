"""Every buffer of a pass, allocated once for the most rows that a pass may have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgen.denoiser.kernels.router import router_parts
from dgen.denoiser.kernels.wide_attention import WideTiles, wide_span
from dgen.denoiser.streams import SideStream
from dgen.denoiser.tiles import MOST_SPLITS, SPLIT_ROWS, attention_tiles
from dgen.denoiser.weights import LayerWeights, SignalWeights


class Workspace:
    """Named buffers; `of` gives the first rows of one.

    Attributes:
        counts, assignments, scores: the router's, see `kernels.router.route`.
        parts: fp32, the parts of split attention.
        exponentials, tops, moves: the buffers of wide attention, see `kernels.wide_attention`.
        side: the stream of what runs beside the experts.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        signal: SignalWeights,
        *,
        max_rows: int,
        max_context: int,
        device: torch.device,
    ) -> None:
        dtype = layers[0].qkv.dtype
        self._flat = {
            name: torch.empty(
                max_rows * width, dtype=torch.float32 if name in _FP32 else dtype, device=device
            )
            for name, width in _widths(layers, signal).items()
        }
        experts = len(layers[0].router)
        self.counts = torch.zeros(experts, dtype=torch.int32, device=device)
        self.assignments = torch.zeros(experts, max_rows, dtype=torch.int32, device=device)
        self.scores = torch.empty(_router_entries(layers, max_rows), dtype=torch.float32, device=device)
        self.parts = torch.empty(_parts_entries(layers, max_rows), dtype=torch.float32, device=device)
        wide, tops, moves = _wide_entries(layers, max_rows, max_context)
        self.exponentials = torch.empty(wide, dtype=dtype, device=device)
        self.tops = torch.empty(tops, dtype=torch.float32, device=device)
        self.moves = torch.empty(moves, dtype=torch.int32, device=device)
        self.side = SideStream(device)

    def of(self, name: str, rows: int, width: int) -> Tensor:
        """The buffer `name` as [rows, width]."""
        return self._flat[name][: rows * width].view(rows, width)


def workspace_bytes(
    layers: Sequence[LayerWeights], signal: SignalWeights, *, max_rows: int, max_context: int
) -> int:
    """Bytes that a Workspace allocates."""
    item = layers[0].qkv.itemsize
    per_row = sum(width * (4 if name in _FP32 else item) for name, width in _widths(layers, signal).items())
    wide, tops, moves = _wide_entries(layers, max_rows, max_context)
    four_bytes = max_rows * len(layers[0].router) + _parts_entries(layers, max_rows) + tops + moves
    four_bytes += _router_entries(layers, max_rows)
    return max_rows * per_row + 4 * four_bytes + wide * item


_MOST_WIDE = 2**28
"""Entries of exponentials at a time, at most: half a gigabyte in bf16."""
_FP32 = ("residual", "shares")


def _widths(layers: Sequence[LayerWeights], signal: SignalWeights) -> dict[str, int]:
    hidden = layers[0].o.shape[0]
    middle = max(len(signal.gate_up), *(len(layer.gate_up) for layer in layers))
    top_k = layers[0].top_k
    return {
        "residual": hidden,
        "normed": hidden,
        "qkv": max((layer.q_heads + 2 * layer.kv_heads) * layer.head_dim for layer in layers),
        "attended": max(layer.q_heads * layer.head_dim for layer in layers),
        "projected": hidden,
        "for_mlp": hidden,
        "for_experts": hidden,
        "for_router": hidden,
        "mlp_middle": middle,
        "mlp_product": middle // 2,
        "mlp_out": hidden,
        "shares": top_k,
        "expert_middle": top_k * layers[0].experts_down.shape[2],
        "expert_out": top_k * hidden,
    }


def _router_entries(layers: Sequence[LayerWeights], max_rows: int) -> int:
    experts, hidden = layers[0].router.shape
    return router_parts(hidden) * max_rows * experts


def _parts_entries(layers: Sequence[LayerWeights], max_rows: int) -> int:
    split = min(max_rows, SPLIT_ROWS) * MOST_SPLITS
    return max(
        max(split * layer.q_heads * (layer.head_dim + 2), max_rows * layer.q_heads * 2) for layer in layers
    )


def _wide_entries(layers: Sequence[LayerWeights], max_rows: int, max_context: int) -> tuple[int, int, int]:
    """Exponentials, their references and the last moves of those: for every row at once, up to a limit that still
    holds one tile of rows."""
    most = tops = moves = 0
    for layer in layers:
        tiles = attention_tiles(layer, rows=max_rows, n=max_rows)
        if isinstance(tiles, WideTiles):
            span = wide_span(max_context, layer.window, max_rows, tiles)
            whole = (max_rows * layer.q_heads + layer.kv_heads * tiles.rows) * span
            entries = min(whole, max(_MOST_WIDE, span * tiles.rows))
            most, tops = max(most, entries), max(tops, entries // tiles.keys)
            moves = max(moves, entries // tiles.keys // tiles.rows * MOST_SPLITS)
    return most, tops, moves
