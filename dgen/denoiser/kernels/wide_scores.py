"""The first product of wide attention: scores, as exponentials in memory. See `wide_attention`."""

# mypy: allow-untyped-defs
from __future__ import annotations

from dgen.denoiser.kernels.softmax import USUAL, all_bounded, mask_pass, mask_prefix
from dgen.jit import constant, jit, jit_for_any, take_turn, tl

_SLACK = constant(60.0)
"""By how much, in base 2, a score may exceed its row's reference."""


@jit
def place(tile, row_tiles, kv_heads, slots_ptr, lengths_ptr):
    """Of a row tile's number: its place within the pass, key head, sequence, slot and the slot's length."""
    at = tile % row_tiles
    kv_head = (tile // row_tiles) % kv_heads
    sequence = tile // row_tiles // kv_heads
    slot = tl.load(slots_ptr + sequence)
    return at, kv_head, sequence, slot, tl.load(lengths_ptr + slot).to(tl.int32)


@jit
def key_range(at, length, n, window, causal, ROWS: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr):
    """Positions where a row tile's tiles of keys begin, in the prefix and in the pass; tiles of the prefix, and in all.

    Tiles of the prefix begin at multiples of KEYS, so that none is torn by a ring's end.
    """
    first = (at * ROWS) // GROUP
    prefix_lo = tl.minimum(tl.maximum(length + first * causal - window + 1, 0), length) // KEYS * KEYS
    fresh_lo = tl.maximum(first - window + 1, 0) * causal
    fresh_hi = tl.minimum((at * ROWS + ROWS - 1) // GROUP + 1 + (1 - causal) * n, n)
    prefix_tiles = tl.cdiv(length - prefix_lo, KEYS)
    return prefix_lo, fresh_lo, prefix_tiles, prefix_tiles + tl.cdiv(fresh_hi - fresh_lo, KEYS)


@jit
def tiles_of_split(split, tiles, prefix_tiles, SPLITS: tl.constexpr):
    """First tile of a split, where it goes from the prefix to the pass, and its end."""
    share = tl.cdiv(tiles, SPLITS)
    begin = tl.minimum(split * share, tiles)
    end = tl.minimum(begin + share, tiles)
    return begin, tl.minimum(tl.maximum(begin, prefix_tiles), end), end


@jit_for_any("n", "window", "capacity", "row_tiles", "first_tile", "span_tiles")
def scores_kernel(
    qkv_ptr, k_cache_ptr, slots_ptr, lengths_ptr, weights_ptr, tops_ptr, moves_ptr, stats_ptr,
    n, window, capacity, scale, row_tiles, first_tile, span_tiles,
    CAUSAL: tl.constexpr, SLIDES: tl.constexpr, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """2^(s - m) of each row and key, s the score in base 2 and m the reference.

    m is USUAL or, where that doesn't serve, at most _SLACK below the row's largest score so far in this split. The end
    of the last tile that moved some row's m goes to `moves`; up to there m goes to `tops` for each tile. The split's
    last m and its sum of 2^(s - m) go to `stats`.
    """
    take_turn(EARLY)
    local = tl.program_id(1)
    at, kv_head, sequence, slot, length = place(
        local + first_tile, row_tiles, KV_HEADS, slots_ptr, lengths_ptr
    )
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * D
    prefix_lo, fresh_lo, prefix_tiles, tiles = key_range(at, length, n, window, CAUSAL, ROWS, KEYS, GROUP)
    begin, middle, end = tiles_of_split(tl.program_id(0), tiles, prefix_tiles, SPLITS)
    lane = tl.arange(0, ROWS)
    r = at * ROWS + lane
    i = r // GROUP
    head = kv_head * GROUP + r % GROUP
    d = tl.arange(0, DEPTH)
    fresh_ptr = qkv_ptr + sequence.to(tl.int64) * n * WIDTH
    # A row beyond the pass reads its last one, and is never stored.
    q_ptr = fresh_ptr + tl.minimum(i, n - 1)[:, None] * WIDTH + head[:, None] * D + d[None, :]
    i_first, i_last = at * ROWS // GROUP, (at * ROWS + ROWS - 1) // GROUP
    # By tile and then by row, so that a tile's rows lie side by side.
    w_ptr = weights_ptr + local.to(tl.int64) * span_tiles * ROWS * KEYS + (lane * KEYS)[:, None]
    top_ptr = tops_ptr + local.to(tl.int64) * span_tiles * ROWS + lane
    k_cache_ptr += (slot * KV_HEADS + kv_head) * capacity * D
    key_ptr = fresh_ptr + (Q_HEADS + kv_head) * D
    # A causal row may have no key in its split, and then a sum of 0, which tells nothing.
    TRUSTING: tl.constexpr = CAUSAL == 0 or SPLITS == 1
    top, total, moved = _score_tiles(
        q_ptr, i, i_first, i_last, k_cache_ptr, key_ptr, w_ptr, top_ptr, begin, middle, end, prefix_lo, prefix_tiles,
        fresh_lo, length, n, window, capacity, scale, CAUSAL, SLIDES, WIDTH, D, ROWS, KEYS, DEPTH, not TRUSTING, EVEN,
        PRECISION,
    )  # fmt: skip
    if TRUSTING:  # noqa: SIM102 - a constant, by which the rest is compiled or not
        if (begin < end) & (all_bounded(total) == 0):
            top, total, moved = _score_tiles(
                q_ptr, i, i_first, i_last, k_cache_ptr, key_ptr, w_ptr, top_ptr, begin, middle, end, prefix_lo,
                prefix_tiles, fresh_lo, length, n, window, capacity, scale, CAUSAL, SLIDES, WIDTH, D, ROWS, KEYS, DEPTH,
                True, EVEN, PRECISION,
            )  # fmt: skip
    tl.store(moves_ptr + local * SPLITS + tl.program_id(0), tl.max(moved, axis=0))
    stat = stats_ptr + (((sequence.to(tl.int64) * n + i) * Q_HEADS + head) * SPLITS + tl.program_id(0)) * 2
    # As in `attention`: a split without a key has no reference.
    tl.store(stat, tl.where(total == 0.0, -1.0e30, top), mask=i < n)
    tl.store(stat + 1, total, mask=i < n)


@jit
def _score_tiles(
    q_ptr, i, i_first, i_last, k_cache_ptr, key_ptr, w_ptr, top_ptr, begin, middle, end, prefix_lo, prefix_tiles,
    fresh_lo, length, n, window, capacity, scale,
    CAUSAL: tl.constexpr, SLIDES: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, DEPTH: tl.constexpr, MOVES: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reference and sum of 2^(s - reference) of each row, and the end of the last tile that moved its reference.

    Without MOVES it is USUAL throughout, which saves much work between products.
    """
    log2_scale = scale * 1.4426950408889634
    key, d = tl.arange(0, KEYS), tl.arange(0, DEPTH)
    total = tl.zeros([ROWS], dtype=tl.float32)
    top = total + (-5.0e29 if MOVES else USUAL)  # above masked scores: a row may have met no key so far
    moved = tl.zeros([ROWS], dtype=tl.int32)
    BLOCKS: tl.constexpr = (D + DEPTH - 1) // DEPTH
    s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    # One loop over tiles and blocks of the depth: loads for a tile start while the one before is still worked on.
    for step in range(begin * BLOCKS, middle * BLOCKS):
        tile, d0 = step // BLOCKS, step % BLOCKS * DEPTH
        p0 = prefix_lo + tile * KEYS
        k_at = p0 % capacity * D + d0 + tl.minimum(key, length - 1 - p0)[:, None] * D + d[None, :]
        s = _add_block(s, q_ptr + d0, k_cache_ptr + k_at, (d < D - d0)[None, :], EVEN, PRECISION)
        if step % BLOCKS == BLOCKS - 1:
            s = s * log2_scale - (0.0 if MOVES else USUAL)
            s = mask_prefix(s, p0, i, i_last, length, window, KEYS, SLIDES)
            top, total, moved = _keep_tile(s, top, total, moved, w_ptr, top_ptr, tile, ROWS, KEYS, MOVES)
            s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    for step in range(middle * BLOCKS, end * BLOCKS):
        tile, d0 = step // BLOCKS, step % BLOCKS * DEPTH
        j0 = fresh_lo + (tile - prefix_tiles) * KEYS
        k_at = d0 + tl.minimum(j0 + key, n - 1)[:, None] * WIDTH + d[None, :]
        s = _add_block(s, q_ptr + d0, key_ptr + k_at, (d < D - d0)[None, :], EVEN, PRECISION)
        if step % BLOCKS == BLOCKS - 1:
            s = s * log2_scale - (0.0 if MOVES else USUAL)
            s = mask_pass(s, j0, i, i_first, i_last, n, window, KEYS, CAUSAL)
            top, total, moved = _keep_tile(s, top, total, moved, w_ptr, top_ptr, tile, ROWS, KEYS, MOVES)
            s = tl.zeros([ROWS, KEYS], dtype=tl.float32)
    return top, total, moved


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
def _keep_tile(
    s, top, total, moved, w_ptr, top_ptr, tile, ROWS: tl.constexpr, KEYS: tl.constexpr, MOVES: tl.constexpr
):  # fmt: skip
    if MOVES:
        largest = tl.max(s, axis=1)
        moves = largest > top + _SLACK
        new_top = tl.where(moves, largest, top)
        w = tl.exp2(s - new_top[:, None])
        total *= tl.exp2(top - new_top)
        top = new_top
        moved = tl.where(moves, tile + 1, moved)
        tl.store(top_ptr + tile * ROWS, top)
    else:
        w = tl.exp2(s)
    total += tl.sum(w, axis=1)
    w_at = tile * (ROWS * KEYS) + tl.arange(0, KEYS)[None, :]
    tl.store(w_ptr + w_at, w.to(w_ptr.dtype.element_ty))
    return top, total, moved
