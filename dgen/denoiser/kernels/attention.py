"""Attention of a pass's own rows over two segments: the slot's cached keys, then the pass's keys.

No concatenation and no mask in memory: a slot's length, the window and causality are read or computed where they
are needed. The heads that share a key head stand in one tile, so that a key is read once for all of them. A cache
is a ring: position p lies at p % capacity. Knows tensors and lengths, no model.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgen.denoiser.kernels.softmax import NO_WINDOW, USUAL, all_bounded, mask_pass, mask_prefix, merge_splits
from dgen.jit import early, jit, jit_for_any, precision, take_turn, tl, triton


@dataclass(frozen=True, slots=True)
class Tiles:
    """Shape of the kernel's work: rows (tokens times heads of a group) and keys of a tile, warps, stages, splits."""

    rows: int
    keys: int
    warps: int
    stages: int
    splits: int


@jit
def _attend_block(
    q, first, i, i_first, i_last, length, window, log2_scale, top, total, acc, k_ptr, v_ptr, left,
    STRIDE: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr, MOVES: tl.constexpr,
    OF_PASS: tl.constexpr, ROW_BY_ROW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of a softmax in base 2, over the first `left` of KEYS rows of keys and values, the first at position
    `first` of the prefix or, if OF_PASS, of the pass."""
    key, d = tl.arange(0, KEYS)[:, None], tl.arange(0, D_BLOCK)[None, :]
    at = key * STRIDE + d
    inside = key < left
    if D < D_BLOCK:
        inside = inside & (d < D)
    k = tl.load(k_ptr + at, mask=inside, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * log2_scale - (0.0 if MOVES else USUAL)
    if OF_PASS:
        s = mask_pass(s, first, i, i_first, i_last, first + left, window, KEYS, ROW_BY_ROW)
    else:
        s = mask_prefix(s, first, i, i_last, length, window, KEYS, ROW_BY_ROW)
    if MOVES:
        new_top = tl.maximum(top, tl.max(s, axis=1))
        s -= new_top[:, None]
        shrink = tl.exp2(top - new_top)
        total *= shrink
        acc *= shrink[:, None]
        top = new_top
    p = tl.exp2(s)
    total += tl.sum(p, axis=1)
    v = tl.load(v_ptr + at, mask=inside, other=0.0)
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return top, total, acc


@jit
def _attend_blocks(
    q, i, i_first, i_last, k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, begin, end, first_block, prefix_blocks, fresh_lo,
    fresh_hi, length, window, capacity, log2_scale,
    CAUSAL: tl.constexpr, SLIDES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    D: tl.constexpr, D_BLOCK: tl.constexpr, MOVES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reference, sum of 2^(score - reference) and that sum of values of each row, over the blocks begin to end.

    With MOVES the reference is the largest score, found as it goes; without it is USUAL, which saves much work between
    the products.
    """
    total = tl.zeros([ROWS], dtype=tl.float32)
    top = total + (-1.0e30 if MOVES else USUAL)
    acc = tl.zeros([ROWS, D_BLOCK], dtype=tl.float32)
    for block in range(begin, tl.minimum(end, prefix_blocks)):
        p0 = (first_block + block) * KEYS
        at = p0 % capacity * D
        top, total, acc = _attend_block(
            q, p0, i, i_first, i_last, length, window, log2_scale, top, total, acc, k_cache_ptr + at, v_cache_ptr + at,
            length - p0, D, KEYS, D, D_BLOCK, MOVES, False, SLIDES, PRECISION,
        )  # fmt: skip
    for block in range(tl.maximum(begin, prefix_blocks), end):
        j0 = fresh_lo + (block - prefix_blocks) * KEYS
        top, total, acc = _attend_block(
            q, j0, i, i_first, i_last, length, window, log2_scale, top, total, acc, k_ptr + j0 * WIDTH,
            v_ptr + j0 * WIDTH, fresh_hi - j0, WIDTH, KEYS, D, D_BLOCK, MOVES, True, CAUSAL, PRECISION,
        )  # fmt: skip
    return top, total, acc


@jit_for_any("n", "window", "capacity")
def _attention_kernel(
    qkv_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, lengths_ptr, out_ptr, part_ptr, part_stats_ptr,
    n, window, capacity, scale,
    CAUSAL: tl.constexpr, SLIDES: tl.constexpr, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, D_BLOCK: tl.constexpr,
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

    # A causal row sees window positions up to itself; a bidirectional one the last window - 1 of the prefix.
    i_first, i_last = tile * ROWS // GROUP, (tile * ROWS + ROWS - 1) // GROUP
    prefix_lo = tl.minimum(tl.maximum(length + i_first * CAUSAL - window + 1, 0), length)
    fresh_hi = tl.minimum(i_last + 1 + (1 - CAUSAL) * n, n)
    fresh_lo = tl.maximum(i_first * CAUSAL - window + 1, 0)
    # Blocks of the prefix begin at multiples of KEYS, so that none is torn by a ring's end.
    first_block = prefix_lo // KEYS
    prefix_blocks = tl.cdiv(length, KEYS) - first_block
    blocks = prefix_blocks + tl.cdiv(fresh_hi - fresh_lo, KEYS)
    share = tl.cdiv(blocks, SPLITS)
    begin, end = split * share, tl.minimum(blocks, split * share + share)

    ring = (slot * KV_HEADS + kv_head) * capacity * D
    k_cache_ptr += ring
    v_cache_ptr += ring
    k_ptr = fresh_ptr + (Q_HEADS + kv_head) * D
    v_ptr = k_ptr + KV_HEADS * D
    # A causal row may have no key in its split, and then a sum of 0, which tells nothing.
    TRUSTING: tl.constexpr = CAUSAL == 0 or SPLITS == 1
    top, total, acc = _attend_blocks(
        q, i, i_first, i_last, k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, begin, end, first_block, prefix_blocks, fresh_lo,
        fresh_hi, length, window, capacity, log2_scale, CAUSAL, SLIDES, WIDTH, ROWS, KEYS, D, D_BLOCK,
        not TRUSTING, PRECISION,
    )  # fmt: skip
    if TRUSTING:  # noqa: SIM102 - a constant, by which the rest is compiled or not
        if (begin < end) & (all_bounded(total) == 0):
            top, total, acc = _attend_blocks(
                q, i, i_first, i_last, k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, begin, end, first_block, prefix_blocks,
                fresh_lo, fresh_hi, length, window, capacity, log2_scale, CAUSAL, SLIDES, WIDTH, ROWS, KEYS, D, D_BLOCK,
                True, PRECISION,
            )  # fmt: skip

    row = sequence.to(tl.int64) * n + i
    out_row = row * Q_HEADS + head
    if SPLITS == 1:
        o = acc / total[:, None]
        tl.store(out_ptr + out_row[:, None] * D + d[None, :], o.to(out_ptr.dtype.element_ty), mask=q_inside)
    else:
        part = out_row * SPLITS + split
        tl.store(part_ptr + part[:, None] * D + d[None, :], acc, mask=q_inside)
        # A split without a key has no reference, or its 0 would outweigh scores far below that.
        tl.store(part_stats_ptr + part * 2, tl.where(total == 0.0, -1.0e30, top), mask=i < n)
        tl.store(part_stats_ptr + part * 2 + 1, total, mask=i < n)


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
        cache: keys and values [slots, kv heads, capacity, D]; holds at least the last window - 1 positions. A capacity
            that some position reaches is a multiple of `tiles.keys`.
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
        n, window, capacity, scale,
        CAUSAL=int(causal), SLIDES=causal and window < NO_WINDOW,
        Q_HEADS=q_heads, KV_HEADS=kv_heads, GROUP=group, D=width, D_BLOCK=d_block,
        ROWS=tiles.rows, KEYS=tiles.keys, SPLITS=tiles.splits,
        PRECISION=precision(qkv),
        num_warps=tiles.warps, num_stages=tiles.stages, **early(qkv.device),
    )  # fmt: skip
    if tiles.splits > 1:
        merge_splits(part, stats, out, splits=tiles.splits, width=width)


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
