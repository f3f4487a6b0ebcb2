"""The shapes of the kernels' work, by what they work on: measured choices, none of which changes a result's meaning."""

from __future__ import annotations

import torch

from dgen.denoiser.kernels.attention import Tiles
from dgen.denoiser.kernels.experts import ExpertTiles
from dgen.denoiser.kernels.wide_attention import WideTiles
from dgen.denoiser.weights import LayerWeights

SPLIT_ROWS = 512
"""Most rows of a pass whose attention is split over keys: more of them fill a card without."""
MOST_SPLITS = 4
_PROGRAMS = 132
"""Programs that a large card runs at once; fewer than that leave it idle, so that keys are split."""


def attention_tiles(layer: LayerWeights, *, rows: int, n: int) -> Tiles | WideTiles:
    """For `rows` rows in passes of n."""
    group, passes = layer.q_heads // layer.kv_heads, rows // n
    if layer.qkv.dtype == torch.float32:
        tile, keys, warps, stages = 16, 16, 4, 1
    elif layer.head_dim > 256:
        return wide_tiles(group=group, kv_heads=layer.kv_heads, passes=passes, n=n)
    else:
        tile, keys, warps, stages = 128, 32, 8, 3
    return Tiles(tile, keys, warps, stages, _splits(-(-n * group // tile) * layer.kv_heads * passes, rows))


def ring_unit(layer: LayerWeights) -> int:
    """What a ring's length is a multiple of, so that no block of keys is torn by its end."""
    tiles = attention_tiles(layer, rows=1, n=1)
    return tiles.keys


def wide_tiles(*, group: int, kv_heads: int, passes: int, n: int) -> WideTiles:
    """For heads that are too wide to be attended to in one product."""
    return WideTiles(
        rows=128,
        splits=_splits(-(-n * group // 128) * kv_heads * passes, passes * n),
        keys=256,
        depth=64,
        stages=3,
        warps=8,
        value_keys=64,
        columns=128,
        value_stages=3,
        value_warps=4,
    )


def _splits(programs: int, rows: int) -> int:
    """Into how many parts the keys of so many programs are cut: a power of two that gives each part a place."""
    if rows > SPLIT_ROWS:
        return 1
    return min(MOST_SPLITS, 1 << max(0, (_PROGRAMS // programs).bit_length() - 1))


def expert_tiles(
    *, tokens: int, top_k: int, experts: int, dtype: torch.dtype
) -> tuple[ExpertTiles, ExpertTiles]:
    """For the two products of the experts, from the mean number of tokens that one has."""
    mean = tokens * top_k / experts
    if dtype == torch.float32:
        small = ExpertTiles(tokens=16, few=16, columns=32, depth=32, warps=4, stages=2, spread=False)
        return small, small
    if mean <= 40:
        return (
            ExpertTiles(tokens=32, few=16, columns=64, depth=128, warps=4, stages=4, spread=False),
            ExpertTiles(tokens=32, few=16, columns=256, depth=64, warps=8, stages=5, spread=False),
        )
    return (
        ExpertTiles(tokens=128, few=32, columns=128, depth=64, warps=8, stages=4, spread=True),
        ExpertTiles(tokens=128, few=32, columns=256, depth=64, warps=8, stages=4, spread=True),
    )
