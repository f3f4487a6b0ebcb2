"""Attention of a pass's own rows over two segments: the slot's cached keys, then the pass's keys.

No concatenation and no mask in memory: a slot's length, the window and causality are read or computed where they
are needed. The heads that share a key head stand in one tile, so that a key is read once for all of them. A cache
is a ring: position p lies at p % capacity. Knows tensors and lengths, no model.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgen.jit import early, jit, jit_for_any, precision, take_turn, tl, triton

NO_WINDOW = 2**30
"""A window that sees every position."""
_NEVER = -1.0e30  # a masked score; -inf would make the difference of two of them a NaN


@dataclass(frozen=True, slots=True)
class Tiles:
    """Shape of the kernel's work: rows (tokens times heads of a group) and keys of a tile, warps, stages, splits."""

    rows: int
    keys: int
    warps: int
    stages: int
    splits: int


@jit
def _scores(q, k_ptr, k_at, inside, ok, log2_scale, PRECISION: tl.constexpr):
    k = tl.load(k_ptr + k_at, mask=inside, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * log2_scale
    return tl.where(ok, s, -1.0e30)


@jit
def _add_values(s, top, total, acc, v_ptr, v_at, inside, PRECISION: tl.constexpr):
    """One block of the online softmax, in base 2."""
    new_top = tl.maximum(top, tl.max(s, axis=1))
    p = tl.exp2(s - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(p, axis=1)
    v = tl.load(v_ptr + v_at, mask=inside, other=0.0)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return new_top, total, acc


@jit_for_any("n", "window", "capacity", "causal")
def _attention_kernel(
    qkv_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, lengths_ptr, out_ptr, part_ptr, part_stats_ptr,
    n, window, capacity, causal, scale,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    take_turn(EARLY)
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    sequence, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    slot = tl.load(slots_ptr + sequence)
    length = tl.load(lengths_ptr + slot).to(tl.int32)
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    r = tile * ROWS + tl.arange(0, ROWS)
    i = r // GROUP
    head = kv_head * GROUP + r % GROUP
    d = tl.arange(0, D_BLOCK)
    fresh_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH
    q_inside = (i < n)[:, None] & (d < D)[None, :]
    q = tl.load(fresh_ptr + i[:, None] * WIDTH + head[:, None] * D + d[None, :], mask=q_inside, other=0.0)
    log2_scale = scale * 1.4426950408889634

    # A row sees positions from first_i on; a bidirectional one looks from the first position after the prefix.
    first_i = length + i * causal - window + 1
    tile_first_i = (tile * ROWS) // GROUP
    prefix_lo = tl.minimum(tl.maximum(length + tile_first_i * causal - window + 1, 0), length)
    fresh_hi = tl.where(causal != 0, tl.minimum((tile * ROWS + ROWS - 1) // GROUP + 1, n), n)
    fresh_lo = tl.maximum(tile_first_i - window + 1, 0) * causal
    prefix_blocks = tl.cdiv(length - prefix_lo, KEYS)
    blocks = prefix_blocks + tl.cdiv(fresh_hi - fresh_lo, KEYS)
    share = tl.cdiv(blocks, SPLITS)
    begin, end = split * share, tl.minimum(blocks, split * share + share)

    top = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    acc = tl.zeros([ROWS, D_BLOCK], dtype=tl.float32)
    ring = (slot * KV_HEADS + kv_head) * capacity
    for block in range(begin, tl.minimum(end, prefix_blocks)):
        p = prefix_lo + block * KEYS + tl.arange(0, KEYS)
        at = (ring + p % capacity)[:, None] * D + d[None, :]
        inside = (p < length)[:, None] & (d < D)[None, :]
        ok = (p < length)[None, :] & (p[None, :] >= first_i[:, None])
        s = _scores(q, k_cache_ptr, at, inside, ok, log2_scale, PRECISION)
        top, total, acc = _add_values(s, top, total, acc, v_cache_ptr, at, inside, PRECISION)
    k_ptr = fresh_ptr + (Q_HEADS + kv_head) * D
    v_ptr = k_ptr + KV_HEADS * D
    for block in range(tl.maximum(begin, prefix_blocks), end):
        j = fresh_lo + (block - prefix_blocks) * KEYS + tl.arange(0, KEYS)
        at = j[:, None] * WIDTH + d[None, :]
        inside = (j < fresh_hi)[:, None] & (d < D)[None, :]
        back = i[:, None] - j[None, :]
        ok = (j < fresh_hi)[None, :] & ((causal == 0) | ((back >= 0) & (back < window)))
        s = _scores(q, k_ptr, at, inside, ok, log2_scale, PRECISION)
        top, total, acc = _add_values(s, top, total, acc, v_ptr, at, inside, PRECISION)

    row = sequence.to(tl.int64) * n + i
    out_row = row * Q_HEADS + head
    if SPLITS == 1:
        o = acc / total[:, None]
        tl.store(out_ptr + out_row[:, None] * D + d[None, :], o.to(out_ptr.dtype.element_ty), mask=q_inside)
    else:
        part = out_row * SPLITS + split
        tl.store(part_ptr + part[:, None] * D + d[None, :], acc, mask=q_inside)
        tl.store(part_stats_ptr + part * 2, top, mask=i < n)
        tl.store(part_stats_ptr + part * 2 + 1, total, mask=i < n)


@jit
def _merge_splits_kernel(
    part_ptr, part_stats_ptr, out_ptr, SPLITS: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A row without a key in some split has a weight of exactly 0 there: its maximum is that of masked scores."""
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D_BLOCK)
    split = tl.arange(0, SPLITS)
    top = tl.load(part_stats_ptr + (row * SPLITS + split) * 2)
    total = tl.load(part_stats_ptr + (row * SPLITS + split) * 2 + 1)
    weight = tl.exp2(top - tl.max(top, axis=0))
    at = (row * SPLITS + split)[:, None] * D + d[None, :]
    parts = tl.load(part_ptr + at, mask=(d < D)[None, :], other=0.0)
    o = tl.sum(parts * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out_ptr + row * D + d, o.to(out_ptr.dtype.element_ty), mask=d < D)


@jit_for_any("n", "capacity", "num_slots")
def _write_cache_kernel(
    qkv_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, lengths_ptr, counts_ptr, n, capacity, num_slots,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    take_turn(EARLY)
    i, sequence = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots_ptr + sequence)
    count = tl.load(counts_ptr + sequence)
    # A row beyond the ring is one whose place a later row of this pass takes; the spare slot has no cache.
    if (i < count) & (i >= count - capacity) & (slot < num_slots):
        p = tl.load(lengths_ptr + slot) + i
        row = sequence.to(tl.int64) * n + i
        d = tl.arange(0, D_BLOCK)
        for head in range(KV_HEADS):
            source = (row * (Q_HEADS + 2 * KV_HEADS) + Q_HEADS + head) * D + d
            target = ((slot * KV_HEADS + head) * capacity + p % capacity) * D + d
            k = tl.load(qkv_ptr + source, mask=d < D)
            v = tl.load(qkv_ptr + source + KV_HEADS * D, mask=d < D)
            tl.store(k_cache_ptr + target, k, mask=d < D)
            tl.store(v_cache_ptr + target, v, mask=d < D)


def attend(
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
    tiles: Tiles,
    parts: Tensor | None = None,
) -> None:
    """softmax(q k^T * scale) v of m passes of n rows each.

    Args:
        qkv: [m * n, q heads + 2 * kv heads, D], normed and rotated.
        cache: keys and values [slots, kv heads, capacity, D]; holds at least the last window - 1 positions.
        slots: int64 [m]; lengths int64 [slots]: how many positions each slot's prefix has.
        out: [m * n, q heads * D].
        window: positions that a row sees, itself included. A causal row at position p sees keys from p - window + 1
            on; a bidirectional one sees the last window - 1 of the prefix and every row of the pass.
        tiles: the kernel's shape; with more than one split the keys are shared out and merged through `parts`,
            fp32 with at least m * n * q_heads * splits * (D + 2) entries.
    """
    keys, values = cache
    kv_heads, capacity, width = keys.shape[1:]
    rows = qkv.shape[0]
    group = q_heads // kv_heads
    d_block = max(16, triton.next_power_of_2(width))
    part = stats = out
    if tiles.splits > 1:
        assert parts is not None, "splits need a place for their parts"
        entries = rows * q_heads * tiles.splits
        part, stats = parts[: entries * width], parts[entries * width : entries * (width + 2)]
    grid = (triton.cdiv(n * group, tiles.rows), kv_heads, rows // n * tiles.splits)
    _attention_kernel[grid](
        qkv, keys, values, slots, lengths, out, part, stats,
        n, window, capacity, int(causal), scale,
        Q_HEADS=q_heads, KV_HEADS=kv_heads, GROUP=group, D=width, D_BLOCK=d_block,
        ROWS=tiles.rows, KEYS=tiles.keys, SPLITS=tiles.splits,
        PRECISION=precision(qkv),
        num_warps=tiles.warps, num_stages=tiles.stages, **early(qkv.device),
    )  # fmt: skip
    if tiles.splits > 1:
        merge_splits(part, stats, out, splits=tiles.splits, width=width)


def merge_splits(parts: Tensor, stats: Tensor, out: Tensor, *, splits: int, width: int) -> None:
    """Merge the splits of each row and head: parts fp32 [rows * q heads, splits, D], stats [..., splits, 2] -> out.

    stats holds, in base 2, each split's largest score and its sum of exponentials relative to that.
    """
    _merge_splits_kernel[(out.numel() // width,)](
        parts, stats, out, SPLITS=splits, D=width, D_BLOCK=triton.next_power_of_2(width), num_warps=2,
        **early(out.device),
    )  # fmt: skip


def write_cache(
    qkv: Tensor,
    cache: tuple[Tensor, Tensor],
    slots: Tensor,
    lengths: Tensor,
    counts: Tensor,
    *,
    n: int,
    q_heads: int,
) -> None:
    """Append the keys and values of the first counts (int64 [m]) rows of m passes of n rows behind their slots'
    prefixes; other arguments as in `attend`.

    To be called after the pass's attention: a ring's oldest positions make room.
    """
    keys, values = cache
    kv_heads, capacity, width = keys.shape[1:]
    _write_cache_kernel[(n, len(slots))](
        qkv, keys, values, slots, lengths, counts, n, capacity, len(keys),
        Q_HEADS=q_heads, KV_HEADS=kv_heads, D=width, D_BLOCK=triton.next_power_of_2(width),
        num_warps=2, **early(qkv.device),
    )  # fmt: skip
