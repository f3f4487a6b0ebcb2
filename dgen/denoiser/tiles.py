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
    group = layer.q_heads // layer.kv_heads
    if layer.qkv.dtype == torch.float32:
        tile, keys, warps, stages = 16, 16, 4, 1
    elif layer.head_dim > 256:
        return wide_tiles(group=group, kv_heads=layer.kv_heads, passes=rows // n, n=n)
    elif rows * layer.q_heads >= 120 * 128:
        tile, keys, warps, stages = 128, 32, 8, 3
    else:
        tile, keys, warps, stages = 64, 32, 4, 3
    programs = -(-n * group // tile) * layer.kv_heads * (rows // n)
    splits = 2 if programs * 2 <= _PROGRAMS and rows <= SPLIT_ROWS else 1
    return Tiles(tile, keys, warps, stages, splits)


def wide_tiles(*, group: int, kv_heads: int, passes: int, n: int) -> WideTiles:
    """For heads that are too wide to be attended to in one product."""
    row_tiles = -(-n * group // 128) * kv_heads * passes
    splits = min(MOST_SPLITS, 1 << max(0, (_PROGRAMS // row_tiles).bit_length() - 1))
    return WideTiles(
        rows=128,
        keys=128,
        depth=64,
        stages=3,
        columns=256,
        value_stages=2,
        warps=8,
        splits=splits if passes * n <= SPLIT_ROWS else 1,
    )


def expert_tiles(
    *, tokens: int, top_k: int, experts: int, dtype: torch.dtype
) -> tuple[ExpertTiles, ExpertTiles]:
    """For the two products of the experts, from the mean number of tokens that one has."""
    mean = tokens * top_k / experts
    if dtype == torch.float32:
        small = ExpertTiles(tokens=16, columns=32, depth=32, warps=4, stages=2, shares=1, few=16)
        return small, small
    if mean <= 40:
        return (
            ExpertTiles(tokens=32, columns=64, depth=128, warps=4, stages=4, shares=1, few=16),
            ExpertTiles(tokens=32, columns=256, depth=64, warps=8, stages=5, shares=1, few=16),
        )
    size = 64 if mean <= 96 else 128
    shares = max(1, round(1.3 * mean / size + 0.4))
    second = ExpertTiles(tokens=size, columns=256, depth=64, warps=8, stages=4, shares=shares, few=32)
    if size == 64:
        return ExpertTiles(tokens=64, columns=64, depth=64, warps=4, stages=4, shares=shares, few=16), second
    return ExpertTiles(tokens=128, columns=128, depth=64, warps=8, stages=4, shares=shares, few=32), second
