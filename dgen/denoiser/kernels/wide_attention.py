"""Attention of wide heads in two products: scores to memory as exponentials, then their sum of values.

A tile of 512-wide heads leaves no room on the chip for both products at once; apart, each runs as an ordinary
product. The exponentials are kept in the model's dtype, relative to a reference that seldom moves, since the second
product must rescale its sums wherever it did: bf16 and fp32 keep their precision over a wide range of
exponents. Same meaning, segments and rings as `attention.attend`; rows are taken in groups so that the exponentials fit
their buffer.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgen.denoiser.kernels.softmax import NO_WINDOW, merge_splits
from dgen.denoiser.kernels.wide_scores import key_range, place, scores_kernel, tiles_of_split
from dgen.jit import constant, early, jit, jit_for_any, precision, take_turn, tl, triton

_NEVER_WRAPS = constant(2**30)


@dataclass(frozen=True, slots=True)
class WideTiles:
    """Shape of the work: rows of a tile and into how many splits a row's keys are cut, then for the first product keys,
    depth, stages and warps, and for the second keys (a divisor of the first's), columns, stages and warps."""

    rows: int
    splits: int
    keys: int
    depth: int
    stages: int
    warps: int
    value_keys: int
    columns: int
    value_stages: int
    value_warps: int


@jit_for_any("n", "window", "capacity", "causal", "row_tiles", "first_tile", "span_tiles")
def _values_kernel(
    qkv_ptr, v_cache_ptr, slots_ptr, lengths_ptr, weights_ptr, tops_ptr, moves_ptr, stats_ptr, out_ptr,
    n, window, capacity, causal, row_tiles, first_tile, span_tiles,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, VALUE_KEYS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The second product of a row tile, some columns and a split; with one split it is divided by its sum."""
    take_turn(EARLY)
    local = tl.program_id(1)
    at, kv_head, sequence, slot, length = place(
        local + first_tile, row_tiles, KV_HEADS, slots_ptr, lengths_ptr
    )
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    prefix_lo, fresh_lo, prefix_tiles, tiles = key_range(at, length, n, window, causal, ROWS, KEYS, GROUP)
    begin, middle, end = tiles_of_split(tl.program_id(2), tiles, prefix_tiles, SPLITS)
    lane = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    moved = tl.load(moves_ptr + local * SPLITS + tl.program_id(2))
    w_ptr = weights_ptr + local.to(tl.int64) * span_tiles * ROWS * KEYS + (lane * KEYS)[:, None]
    top_ptr = tops_ptr + local.to(tl.int64) * span_tiles * ROWS + lane
    ring = (slot * KV_HEADS + kv_head) * capacity
    acc = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    top = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    v_ptr = v_cache_ptr + ring * D
    acc, top = _add_segment(
        acc, top, moved, w_ptr, top_ptr, v_ptr, begin, middle, prefix_lo, length, capacity, column,
        D, D, ROWS, KEYS, VALUE_KEYS, PRECISION,
    )  # fmt: skip
    v_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH + (Q_HEADS + KV_HEADS + kv_head) * D
    acc, top = _add_segment(
        acc, top, moved, w_ptr, top_ptr, v_ptr, middle, end, fresh_lo - prefix_tiles * KEYS, n, _NEVER_WRAPS, column,
        D, WIDTH, ROWS, KEYS, VALUE_KEYS, PRECISION,
    )  # fmt: skip
    r = at * ROWS + lane
    i = r // GROUP
    out_row = (sequence.to(tl.int64) * n + i) * Q_HEADS + kv_head * GROUP + r % GROUP
    if SPLITS == 1:
        acc /= tl.load(stats_ptr + out_row * 2 + 1, mask=i < n, other=1.0)[:, None]
    out_at = (out_row * SPLITS + tl.program_id(2))[:, None] * D + column[None, :]
    tl.store(
        out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=(i < n)[:, None] & (column < D)[None, :]
    )


@jit
def _add_segment(
    acc, top, moved, w_ptr, top_ptr, v_ptr, begin, end, first, limit, wrap, column,
    D: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, VALUE_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles begin to end, of which those before `moved` may have a reference of their own."""
    still = tl.minimum(tl.maximum(moved, begin), end)
    acc, top = _add_values(
        acc, top, w_ptr, top_ptr, v_ptr, begin, still, first, limit, wrap, column,
        D, STRIDE, ROWS, KEYS, VALUE_KEYS, True, PRECISION,
    )  # fmt: skip
    return _add_values(
        acc, top, w_ptr, top_ptr, v_ptr, still, end, first, limit, wrap, column,
        D, STRIDE, ROWS, KEYS, VALUE_KEYS, False, PRECISION,
    )  # fmt: skip


@jit
def _add_values(
    acc, top, w_ptr, top_ptr, v_ptr, begin, end, first, limit, wrap, column,
    D: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, VALUE_KEYS: tl.constexpr,
    MOVES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles begin to end, the first tile of all at the position `first`; positions up to `limit`, a ring of `wrap`.

    The exponentials go to the matrix units as they lie in memory: whatever is computed between the load and the
    product would pass through registers, which the compiler's pipeline of loads does not wait for.
    """
    key = tl.arange(0, VALUE_KEYS)
    SHARES: tl.constexpr = KEYS // VALUE_KEYS  # of a tile, which has one reference
    for share in range(begin * SHARES, end * SHARES):
        tile = share // SHARES
        p0 = first + tile * KEYS  # before the limit, which some of a tile's positions may not be
        at = share % SHARES * VALUE_KEYS + key
        v_at = tl.minimum(at, limit - 1 - p0)[:, None] * STRIDE + column[None, :]
        if MOVES:
            new_top = tl.load(top_ptr + tile * ROWS)
            acc *= tl.exp2(top - new_top)[:, None]
            top = new_top
        w = tl.load(w_ptr + tile * (ROWS * KEYS) + at[None, :])
        v = tl.load(v_ptr + p0 % wrap * STRIDE + v_at, mask=(column < D)[None, :], other=0.0)
        acc = tl.dot(w, v, acc, input_precision=PRECISION)
    return acc, top


def attend_wide(
    qkv: Tensor,
    cache: tuple[Tensor, Tensor],
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    *,
    n: int,
    q_heads: int,
    window: int,
    causal: bool,
    scale: float,
    tiles: WideTiles,
    weights: Tensor,
    tops: Tensor,
    moves: Tensor,
    parts: Tensor,
) -> None:
    """As `attention.attend`, for wide heads.

    Args:
        weights: a buffer in the model's dtype for the exponentials, of at least `wide_span(...)` entries a row of a
            tile.
        tops: fp32, at least 1 / keys of that.
        moves: int32, an entry for each split of each row tile that `weights` has room for.
        parts: fp32 with at least m * n * q_heads * (2 + splits * D if there are splits) entries for each split.
    """
    keys, values = cache
    kv_heads, capacity, width = keys.shape[1:]
    group = q_heads // kv_heads
    row_tiles = triton.cdiv(n * group, tiles.rows)
    every = row_tiles * kv_heads * (qkv.shape[0] // n)
    span = wide_span(capacity, window, n, tiles)
    at_once = min(weights.numel() // (span * tiles.rows), every)
    assert at_once > 0, "the buffer holds no row tile"
    entries = len(qkv) * q_heads * tiles.splits
    stats, target = parts[: entries * 2], out
    if tiles.splits > 1:
        target = parts[entries * 2 : entries * (2 + width)]
    shape = {"Q_HEADS": q_heads, "KV_HEADS": kv_heads, "GROUP": group, "D": width, "ROWS": tiles.rows,
             "KEYS": tiles.keys, "SPLITS": tiles.splits,
             "PRECISION": precision(qkv), **early(qkv.device)}  # fmt: skip
    for first in range(0, every, at_once):
        count = min(at_once, every - first)
        numbers = (row_tiles, first, span // tiles.keys)
        scores_kernel[(tiles.splits, count)](
            qkv, keys, slots, lengths, weights, tops, moves, stats, n, window, capacity, scale, *numbers,
            CAUSAL=int(causal), SLIDES=causal and window < NO_WINDOW, DEPTH=tiles.depth, EVEN=width % tiles.depth == 0,
            num_warps=tiles.warps, num_stages=tiles.stages, **shape,
        )  # fmt: skip
        _values_kernel[(triton.cdiv(width, tiles.columns), count, tiles.splits)](
            qkv, values, slots, lengths, weights, tops, moves, stats, target,
            n, window, capacity, int(causal), *numbers, VALUE_KEYS=tiles.value_keys, COLUMNS=tiles.columns,
            num_warps=tiles.value_warps, num_stages=tiles.value_stages, **shape,
        )  # fmt: skip
    if tiles.splits > 1:
        merge_splits(target, stats, out, splits=tiles.splits, width=width)


def wide_span(capacity: int, window: int, n: int, tiles: WideTiles) -> int:
    """Entries of a row of exponentials for a cache of that capacity and n rows of the pass: whole tiles of each."""
    # A window may begin within a tile, and then ends within another one.
    whole = window > capacity + 1
    prefix = triton.cdiv(capacity, tiles.keys) if whole else triton.cdiv(window - 1, tiles.keys) + 1
    return int((prefix + triton.cdiv(n, tiles.keys)) * tiles.keys)
