"""Attention of wide heads in two products: scores to memory as exponentials, then their sum of values.

A tile of 512-wide heads leaves no room on the chip for both products at once; apart, each runs as an ordinary
product. The exponentials are kept in the model's dtype, relative to the largest score that their row had met by then;
the second product follows the same maxima. Same meaning, segments and rings as `attention.attend`; rows are taken in
groups so that the exponentials fit their buffer.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgen.denoiser.kernels.attention import merge_splits
from dgen.jit import early, jit, jit_for_any, precision, take_turn, tl, triton


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


@jit
def _tiles_of_split(split, tiles, prefix_tiles, SPLITS: tl.constexpr):
    """First tile of a split, where it goes from the prefix to the pass, and its end."""
    share = tl.cdiv(tiles, SPLITS)
    begin = tl.minimum(split * share, tiles)
    end = tl.minimum(begin + share, tiles)
    return begin, tl.minimum(tl.maximum(begin, prefix_tiles), end), end


@jit_for_any("n", "window", "capacity", "causal", "row_tiles", "first_tile", "span_tiles")
def _scores_kernel(
    qkv_ptr, k_cache_ptr, slots_ptr, lengths_ptr, weights_ptr, tops_ptr, stats_ptr,
    n, window, capacity, causal, scale, row_tiles, first_tile, span_tiles,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """2^(s - m) of each row and key, s the score in base 2, m the row's largest one so far in this split.

    m goes to `tops` for each tile; the split's last m and its sum of 2^(s - m) go to `stats`.
    """
    take_turn(EARLY)
    local = tl.program_id(1)
    at, kv_head, sequence, slot, length = _place(
        local + first_tile, row_tiles, KV_HEADS, slots_ptr, lengths_ptr
    )
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    prefix_lo, fresh_lo, fresh_hi, prefix_tiles, tiles = _key_range(
        at, length, n, window, causal, ROWS, KEYS, GROUP
    )
    begin, middle, end = _tiles_of_split(tl.program_id(0), tiles, prefix_tiles, SPLITS)
    lane = tl.arange(0, ROWS)
    r = at * ROWS + lane
    i = r // GROUP
    head = kv_head * GROUP + r % GROUP
    d = tl.arange(0, DEPTH)
    fresh_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH
    # A row beyond the pass reads its last one, and is never stored.
    q_ptr = fresh_ptr + tl.minimum(i, n - 1)[:, None] * WIDTH + head[:, None] * D + d[None, :]
    first_i = length + i * causal - window + 1
    # A multiple of KEYS, which lets loads and stores of many entries at once.
    w_ptr = weights_ptr + (local.to(tl.int64) * ROWS + lane)[:, None] * (span_tiles * KEYS)
    # By tile and then by row, so that a tile's rows lie side by side.
    top_ptr = tops_ptr + local.to(tl.int64) * span_tiles * ROWS + lane
    log2_scale = scale * 1.4426950408889634
    key = tl.arange(0, KEYS)
    ring = (slot * KV_HEADS + kv_head) * capacity
    top = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    BLOCKS: tl.constexpr = (D + DEPTH - 1) // DEPTH
    s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    # One loop over tiles and blocks of the depth: loads for a tile start while the one before is still worked on.
    for step in range(begin * BLOCKS, middle * BLOCKS):
        tile, d0 = step // BLOCKS, step % BLOCKS * DEPTH
        p = prefix_lo + tile * KEYS + key
        k_ptr = k_cache_ptr + (ring + tl.minimum(p, length - 1) % capacity)[:, None] * D + d[None, :]
        s = _add_block(s, q_ptr + d0, k_ptr + d0, (d < D - d0)[None, :], EVEN, PRECISION)
        if step % BLOCKS == BLOCKS - 1:
            ok = (p < length)[None, :] & (p[None, :] >= first_i[:, None])
            top, total = _keep_tile(s * log2_scale, ok, top, total, w_ptr, top_ptr, tile, ROWS, KEYS)
            s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    key_ptr = fresh_ptr + (Q_HEADS + kv_head) * D
    for step in range(middle * BLOCKS, end * BLOCKS):
        tile, d0 = step // BLOCKS, step % BLOCKS * DEPTH
        j = fresh_lo + (tile - prefix_tiles) * KEYS + key
        k_ptr = key_ptr + tl.minimum(j, n - 1)[:, None] * WIDTH + d[None, :]
        s = _add_block(s, q_ptr + d0, k_ptr + d0, (d < D - d0)[None, :], EVEN, PRECISION)
        if step % BLOCKS == BLOCKS - 1:
            back = i[:, None] - j[None, :]
            ok = (j < fresh_hi)[None, :] & ((causal == 0) | ((back >= 0) & (back < window)))
            top, total = _keep_tile(s * log2_scale, ok, top, total, w_ptr, top_ptr, tile, ROWS, KEYS)
            s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    stat = stats_ptr + (((sequence.to(tl.int64) * n + i) * Q_HEADS + head) * SPLITS + tl.program_id(0)) * 2
    tl.store(stat, top, mask=i < n)
    tl.store(stat + 1, total, mask=i < n)


@jit
def _add_block(s, q_ptr, k_ptr, inside, EVEN: tl.constexpr, PRECISION: tl.constexpr):
    if EVEN:
        q = tl.load(q_ptr)
        k = tl.load(k_ptr)
    else:
        q = tl.load(q_ptr, mask=inside, other=0.0)
        k = tl.load(k_ptr, mask=inside, other=0.0)
    return tl.dot(q, tl.trans(k), s, input_precision=PRECISION)


@jit
def _keep_tile(s, ok, top, total, w_ptr, top_ptr, tile, ROWS: tl.constexpr, KEYS: tl.constexpr):
    s = tl.where(ok, s, -1.0e30)
    new_top = tl.maximum(top, tl.max(s, axis=1))
    w = tl.where(ok, tl.exp2(s - new_top[:, None]), 0.0)
    total = total * tl.exp2(top - new_top) + tl.sum(w, axis=1)
    tl.store(top_ptr + tile * ROWS, new_top)
    tl.store(w_ptr + (tile * KEYS + tl.arange(0, KEYS))[None, :], w.to(w_ptr.dtype.element_ty))
    return new_top, total


@jit_for_any("n", "window", "capacity", "causal", "row_tiles", "first_tile", "span_tiles")
def _values_kernel(
    qkv_ptr, v_cache_ptr, slots_ptr, lengths_ptr, weights_ptr, tops_ptr, stats_ptr, out_ptr,
    n, window, capacity, causal, row_tiles, first_tile, span_tiles,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, VALUE_KEYS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The second product of a row tile, some columns and a split; with one split it is divided by its sum."""
    take_turn(EARLY)
    local = tl.program_id(1)
    at, kv_head, sequence, slot, length = _place(
        local + first_tile, row_tiles, KV_HEADS, slots_ptr, lengths_ptr
    )
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    prefix_lo, fresh_lo, _, prefix_tiles, tiles = _key_range(at, length, n, window, causal, ROWS, KEYS, GROUP)
    begin, middle, end = _tiles_of_split(tl.program_id(2), tiles, prefix_tiles, SPLITS)
    lane = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (column < D)[None, :]
    key = tl.arange(0, VALUE_KEYS)
    SHARES: tl.constexpr = KEYS // VALUE_KEYS  # of a tile, which has one maximum
    w_ptr = weights_ptr + (local.to(tl.int64) * ROWS + lane)[:, None] * (span_tiles * KEYS) + key[None, :]
    top_ptr = tops_ptr + local.to(tl.int64) * span_tiles * ROWS + lane
    ring = (slot * KV_HEADS + kv_head) * capacity
    acc = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    top = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    # The exponentials go to the matrix units as they lie in memory: whatever is computed between the load and the
    # product would pass through registers, which the compiler's pipeline of loads does not wait for.
    for share in range(begin * SHARES, middle * SHARES):
        p = prefix_lo + share * VALUE_KEYS + key
        v_at = (ring + tl.minimum(p, length - 1) % capacity)[:, None] * D + column[None, :]
        new_top = tl.load(top_ptr + share // SHARES * ROWS)
        acc *= tl.exp2(top - new_top)[:, None]
        top = new_top
        w = tl.load(w_ptr + share * VALUE_KEYS)
        v = tl.load(v_cache_ptr + v_at, mask=inside, other=0.0)
        acc = tl.dot(w, v, acc, input_precision=PRECISION)
    v_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH + (Q_HEADS + KV_HEADS + kv_head) * D
    for share in range(middle * SHARES, end * SHARES):
        j = fresh_lo + (share - prefix_tiles * SHARES) * VALUE_KEYS + key
        new_top = tl.load(top_ptr + share // SHARES * ROWS)
        acc *= tl.exp2(top - new_top)[:, None]
        top = new_top
        w = tl.load(w_ptr + share * VALUE_KEYS)
        v = tl.load(v_ptr + tl.minimum(j, n - 1)[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
        acc = tl.dot(w, v, acc, input_precision=PRECISION)
    r = at * ROWS + lane
    i = r // GROUP
    out_row = (sequence.to(tl.int64) * n + i) * Q_HEADS + kv_head * GROUP + r % GROUP
    if SPLITS == 1:
        acc /= tl.load(stats_ptr + out_row * 2 + 1, mask=i < n, other=1.0)[:, None]
    out_at = (out_row * SPLITS + tl.program_id(2))[:, None] * D + column[None, :]
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=(i < n)[:, None] & inside)


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
    parts: Tensor,
) -> None:
    """As `attention.attend`, for wide heads.

    Args:
        weights: a buffer in the model's dtype for the exponentials, of at least `wide_span(...)` entries a row of a
            tile.
        tops: fp32, at least 1 / keys of that.
        parts: fp32 with at least m * n * q_heads * (2 + splits * D if there are splits) entries for each split.
    """
    keys, values = cache
    kv_heads, capacity, width = keys.shape[1:]
    group = q_heads // kv_heads
    row_tiles = triton.cdiv(n * group, tiles.rows)
    every = row_tiles * kv_heads * (qkv.shape[0] // n)
    span = wide_span(min(capacity, window), n, tiles)
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
        _scores_kernel[(tiles.splits, count)](
            qkv, keys, slots, lengths, weights, tops, stats, n, window, capacity, int(causal), scale, *numbers,
            DEPTH=tiles.depth, EVEN=width % tiles.depth == 0, num_warps=tiles.warps, num_stages=tiles.stages, **shape,
        )  # fmt: skip
        _values_kernel[(triton.cdiv(width, tiles.columns), count, tiles.splits)](
            qkv, values, slots, lengths, weights, tops, stats, target, n, window, capacity, int(causal), *numbers,
            VALUE_KEYS=tiles.value_keys, COLUMNS=tiles.columns,
            num_warps=tiles.value_warps, num_stages=tiles.value_stages, **shape,
        )  # fmt: skip
    if tiles.splits > 1:
        merge_splits(target, stats, out, splits=tiles.splits, width=width)


def wide_span(prefix: int, n: int, tiles: WideTiles) -> int:
    """Entries of a row of exponentials for at most `prefix` cached keys and n of the pass: whole tiles of each."""
    return (triton.cdiv(prefix, tiles.keys) + triton.cdiv(n, tiles.keys)) * tiles.keys
