"""Attention of wide heads in two products: scores to memory as exponentials, then their sum of values.

A tile of 512-wide heads leaves no room on the chip for both products at once; apart, each runs as an ordinary
product. The exponentials are kept in the model's dtype, relative to the maximum of their own tile of keys; the second
product brings a row's tiles to one maximum. Same meaning, segments and rings as `attention.attend`; rows are
taken in groups so that the exponentials fit their buffer.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgen.jit import jit, jit_for_any, tl, triton


@dataclass(frozen=True, slots=True)
class WideTiles:
    """Shape of the work: rows and keys of a tile, depth of the first product, keys at a time and columns of the second,
    warps, stages, and how many programs share a row tile's keys in the first."""

    rows: int
    keys: int
    depth: int
    value_keys: int
    columns: int
    warps: int
    stages: int
    shares: int


@jit
def _place(tile, row_tiles, kv_heads, slots_ptr, lengths_ptr):
    """Of a row tile's number: its place within the pass, key head, sequence, slot and the slot's length."""
    at = tile % row_tiles
    kv_head = (tile // row_tiles) % kv_heads
    sequence = tile // row_tiles // kv_heads
    slot = tl.load(slots_ptr + sequence)
    return at, kv_head, sequence, slot, tl.load(lengths_ptr + slot).to(tl.int32)


@jit
def _key_range(at, length, n, window, causal, ROWS: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr):
    """First key of the prefix and of the pass that a row tile sees, tiles of the prefix, tiles in all."""
    first = (at * ROWS) // GROUP
    prefix_lo = tl.minimum(tl.maximum(length + first * causal - window + 1, 0), length)
    fresh_lo = tl.maximum(first - window + 1, 0) * causal
    fresh_hi = tl.where(causal != 0, tl.minimum((at * ROWS + ROWS - 1) // GROUP + 1, n), n)
    prefix_tiles = tl.cdiv(length - prefix_lo, KEYS)
    return prefix_lo, fresh_lo, fresh_hi, prefix_tiles, prefix_tiles + tl.cdiv(fresh_hi - fresh_lo, KEYS)


@jit_for_any("n", "window", "capacity", "causal", "row_tiles", "first_tile", "span_tiles")
def _scores_kernel(
    qkv_ptr, k_cache_ptr, slots_ptr, lengths_ptr, weights_ptr, stats_ptr,
    n, window, capacity, causal, scale, row_tiles, first_tile, span_tiles,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """2^(s - m) of each row and key, s the score in base 2 and m the row's maximum in the tile; m and the sum."""
    local = tl.program_id(1)
    at, kv_head, sequence, slot, length = _place(
        local + first_tile, row_tiles, KV_HEADS, slots_ptr, lengths_ptr
    )
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    prefix_lo, fresh_lo, fresh_hi, prefix_tiles, tiles = _key_range(
        at, length, n, window, causal, ROWS, KEYS, GROUP
    )
    lane = tl.arange(0, ROWS)
    r = at * ROWS + lane
    i = r // GROUP
    d = tl.arange(0, DEPTH)
    fresh_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH
    # A row beyond the pass reads its last one, and is never stored.
    q_ptr = (
        fresh_ptr
        + tl.minimum(i, n - 1)[:, None] * WIDTH
        + (kv_head * GROUP + r % GROUP)[:, None] * D
        + d[None, :]
    )
    first_i = length + i * causal - window + 1
    row = local.to(tl.int64) * ROWS + lane
    # A multiple of KEYS, which lets loads and stores of many entries at once.
    w_ptr = weights_ptr + row[:, None] * (span_tiles * KEYS)
    stat_ptr = stats_ptr + row * span_tiles * 2
    log2_scale = scale * 1.4426950408889634
    key = tl.arange(0, KEYS)
    ring = (slot * KV_HEADS + kv_head) * capacity
    for tile in range(tl.program_id(0), prefix_tiles, tl.num_programs(0)):
        p = prefix_lo + tile * KEYS + key
        k_ptr = k_cache_ptr + (ring + tl.minimum(p, length - 1) % capacity)[:, None] * D + d[None, :]
        ok = (p < length)[None, :] & (p[None, :] >= first_i[:, None])
        _score_tile(
            q_ptr, k_ptr, ok, w_ptr, stat_ptr, tile, log2_scale, d, D, ROWS, KEYS, DEPTH, EVEN, PRECISION
        )
    key_ptr = fresh_ptr + (Q_HEADS + kv_head) * D
    for tile in range(prefix_tiles + tl.program_id(0), tiles, tl.num_programs(0)):
        j = fresh_lo + (tile - prefix_tiles) * KEYS + key
        k_ptr = key_ptr + tl.minimum(j, n - 1)[:, None] * WIDTH + d[None, :]
        back = i[:, None] - j[None, :]
        ok = (j < fresh_hi)[None, :] & ((causal == 0) | ((back >= 0) & (back < window)))
        _score_tile(
            q_ptr, k_ptr, ok, w_ptr, stat_ptr, tile, log2_scale, d, D, ROWS, KEYS, DEPTH, EVEN, PRECISION
        )


@jit
def _score_tile(
    q_ptr, k_ptr, ok, w_ptr, stat_ptr, tile, log2_scale, d,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    for d0 in range(0, D, DEPTH):
        if EVEN:
            q = tl.load(q_ptr + d0)
            k = tl.load(k_ptr + d0)
        else:
            q = tl.load(q_ptr + d0, mask=(d < D - d0)[None, :], other=0.0)
            k = tl.load(k_ptr + d0, mask=(d < D - d0)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(k), s, input_precision=PRECISION)
    s = tl.where(ok, s * log2_scale, -1.0e30)
    top = tl.max(s, axis=1)
    w = tl.where(ok, tl.exp2(s - top[:, None]), 0.0)
    tl.store(stat_ptr + tile * 2, top)
    tl.store(stat_ptr + tile * 2 + 1, tl.sum(w, axis=1))
    key = tl.arange(0, KEYS)
    tl.store(w_ptr + (tile * KEYS + key)[None, :], w.to(w_ptr.dtype.element_ty))


@jit_for_any("n", "window", "capacity", "causal", "row_tiles", "first_tile", "span_tiles")
def _values_kernel(
    qkv_ptr, v_cache_ptr, slots_ptr, lengths_ptr, weights_ptr, stats_ptr, out_ptr,
    n, window, capacity, causal, row_tiles, first_tile, span_tiles,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, VALUE_KEYS: tl.constexpr, COLUMNS: tl.constexpr, STATS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The second product of a row tile and some of the columns, its tiles of keys brought to one maximum."""
    local = tl.program_id(1)
    at, kv_head, sequence, slot, length = _place(
        local + first_tile, row_tiles, KV_HEADS, slots_ptr, lengths_ptr
    )
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    prefix_lo, fresh_lo, _, prefix_tiles, tiles = _key_range(at, length, n, window, causal, ROWS, KEYS, GROUP)
    lane = tl.arange(0, ROWS)
    row = local.to(tl.int64) * ROWS + lane
    stat_ptr = stats_ptr + row * span_tiles * 2
    top, total = _row_sums(stat_ptr, tiles, ROWS, STATS)

    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (column < D)[None, :]
    key = tl.arange(0, VALUE_KEYS)
    w_ptr = weights_ptr + row[:, None] * (span_tiles * KEYS) + key[None, :]
    acc = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    ring = (slot * KV_HEADS + kv_head) * capacity
    prefix_keys = prefix_tiles * KEYS
    for start in range(0, prefix_keys, VALUE_KEYS):
        p = prefix_lo + start + key
        v_at = (ring + tl.minimum(p, length - 1) % capacity)[:, None] * D + column[None, :]
        w = tl.load(w_ptr + start)
        back = tl.exp2(tl.load(stat_ptr + start // KEYS * 2) - top)
        v = tl.load(v_cache_ptr + v_at, mask=inside, other=0.0)
        acc = tl.dot((w * back[:, None]).to(v.dtype), v, acc, input_precision=PRECISION)
    v_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH + (Q_HEADS + KV_HEADS + kv_head) * D
    for start in range(prefix_keys, tiles * KEYS, VALUE_KEYS):
        j = fresh_lo + start - prefix_keys + key
        w = tl.load(w_ptr + start)
        back = tl.exp2(tl.load(stat_ptr + start // KEYS * 2) - top)
        v = tl.load(v_ptr + tl.minimum(j, n - 1)[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
        acc = tl.dot((w * back[:, None]).to(v.dtype), v, acc, input_precision=PRECISION)
    r = at * ROWS + lane
    i = r // GROUP
    out_row = ((sequence * n + i).to(tl.int64) * Q_HEADS + kv_head * GROUP + r % GROUP) * D
    o = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_row[:, None] + column[None, :], o, mask=(i < n)[:, None] & inside)


@jit
def _row_sums(stat_ptr, tiles, ROWS: tl.constexpr, STATS: tl.constexpr):
    """Each row's maximum and sum over its tiles, from theirs."""
    top = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(0, tiles, STATS):
        tile = start + tl.arange(0, STATS)
        inside = (tile < tiles)[None, :]
        m = tl.load(stat_ptr[:, None] + tile[None, :] * 2, mask=inside, other=-1.0e30)
        z = tl.load(stat_ptr[:, None] + tile[None, :] * 2 + 1, mask=inside, other=0.0)
        new_top = tl.maximum(top, tl.max(m, axis=1))
        total = total * tl.exp2(top - new_top) + tl.sum(z * tl.exp2(m - new_top[:, None]), axis=1)
        top = new_top
    return top, total


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
    stats: Tensor,
) -> None:
    """As `attention.attend`, for wide heads.

    Args:
        weights: a buffer in the model's dtype for the exponentials, of at least `wide_row(...)` entries a row tile.
        stats: fp32, at least 2 / keys of that.
    """
    keys, values = cache
    kv_heads, capacity, width = keys.shape[1:]
    group = q_heads // kv_heads
    row_tiles = triton.cdiv(n * group, tiles.rows)
    every = row_tiles * kv_heads * (qkv.shape[0] // n)
    span = wide_span(min(capacity, window), n, tiles)
    at_once = min(weights.numel() // (span * tiles.rows), every)
    assert at_once > 0, "the buffer holds no row tile"
    shape = {"Q_HEADS": q_heads, "KV_HEADS": kv_heads, "GROUP": group, "D": width, "ROWS": tiles.rows,
             "KEYS": tiles.keys, "PRECISION": "ieee" if qkv.dtype == torch.float32 else "tf32",
             "num_warps": tiles.warps, "num_stages": tiles.stages}  # fmt: skip
    for first in range(0, every, at_once):
        count = min(at_once, every - first)
        numbers = (row_tiles, first, span // tiles.keys)
        _scores_kernel[(tiles.shares, count)](
            qkv, keys, slots, lengths, weights, stats, n, window, capacity, int(causal), scale, *numbers,
            DEPTH=tiles.depth, EVEN=width % tiles.depth == 0, **shape,
        )  # fmt: skip
        _values_kernel[(triton.cdiv(width, tiles.columns), count)](
            qkv, values, slots, lengths, weights, stats, out, n, window, capacity, int(causal), *numbers,
            VALUE_KEYS=tiles.value_keys, COLUMNS=tiles.columns, STATS=16, **shape,
        )  # fmt: skip


def wide_span(prefix: int, n: int, tiles: WideTiles) -> int:
    """Entries of a row of exponentials for at most `prefix` cached keys and n of the pass: whole tiles of each."""
    return (triton.cdiv(prefix, tiles.keys) + triton.cdiv(n, tiles.keys)) * tiles.keys
