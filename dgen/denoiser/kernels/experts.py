"""Router and experts: tokens are grouped by expert on the device, and each expert's weights are read once.

The router writes, for each expert, the list of its assignments (token * top_k + place): no sort, no host. Their
order depends on the run, a token's result does not. The weights stand on the M side of the matrix units, which is
never less than 64 wide, while an expert may have few tokens. fp32 accumulation, GELU in the first one's epilogue.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgen.denoiser.kernels.norms import gelu
from dgen.jit import early, jit, jit_for_any, take_turn, tl, triton


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Shape of a product's work: tokens, columns and depth of a tile, warps, stages, how many programs share an
    expert's tokens, and how many tokens more a tile may take rather than leave them to another."""

    tokens: int
    columns: int
    depth: int
    warps: int
    stages: int
    shares: int
    few: int


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tokens go: counts int32 [experts], and assignments int32 [experts, most tokens]."""

    counts: Tensor
    assignments: Tensor


@jit_for_any("rows")
def _router_kernel(
    x_ptr, w_ptr, parts_ptr, rows, experts, depth,
    ROWS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, DEPTH: tl.constexpr, SPAN: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Scores of some rows from SPAN entries of the depth: few rows would leave the card idle otherwise."""
    take_turn(EARLY)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS_BLOCK)
    k = tl.program_id(1) * SPAN + tl.arange(0, DEPTH)
    acc = tl.zeros([ROWS, EXPERTS_BLOCK], dtype=tl.float32)
    for k0 in range(0, SPAN, DEPTH):
        left = (k < depth - k0)[None, :]
        x = tl.load(x_ptr + r[:, None] * depth + k[None, :] + k0, mask=(r < rows)[:, None] & left, other=0.0)
        w_at = expert[:, None] * depth + k[None, :] + k0
        w = tl.load(w_ptr + w_at, mask=(expert < experts)[:, None] & left, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
    out = (tl.program_id(1) * rows + r)[:, None] * experts + expert[None, :]
    tl.store(parts_ptr + out, acc, mask=(r < rows)[:, None] & (expert < experts)[None, :])


@jit_for_any("capacity", "rows")
def _route_kernel(
    parts_ptr, gain_ptr, weights_ptr, counts_ptr, assignments_ptr, rows, capacity, experts,
    PARTS: tl.constexpr, TOP_K: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, TOP_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    take_turn(EARLY)
    row = tl.program_id(0)
    expert = tl.arange(0, EXPERTS_BLOCK)
    s = tl.zeros([EXPERTS_BLOCK], dtype=tl.float32)
    for part in tl.static_range(PARTS):
        s += tl.load(parts_ptr + (part * rows + row) * experts + expert, mask=expert < experts, other=0.0)
    s = tl.where(expert < experts, s, float("-inf"))
    first = tl.max(s, axis=0)
    place = tl.arange(0, TOP_BLOCK)
    share = tl.zeros([TOP_BLOCK], dtype=tl.float32)
    chosen = tl.zeros([TOP_BLOCK], dtype=tl.int32)
    for k in tl.static_range(TOP_K):
        best = tl.max(s, axis=0)
        index = tl.min(tl.where(s == best, expert, experts - 1), axis=0)
        share = tl.where(place == k, tl.exp(best - first), share)
        chosen = tl.where(place == k, index, chosen)
        s = tl.where(expert == index, float("-inf"), s)
    inside = place < TOP_K
    share = tl.where(inside, share, 0.0)
    gain = tl.load(gain_ptr + chosen, mask=inside, other=0.0).to(tl.float32)
    tl.store(weights_ptr + row * TOP_K + place, share / tl.sum(share, axis=0) * gain, mask=inside)
    at = tl.atomic_add(counts_ptr + chosen, 1, mask=inside)
    # Scores that are no numbers may choose an expert twice: no list may run over.
    inside = inside & (at < capacity)
    tl.store(assignments_ptr + chosen * capacity + at, row * TOP_K + place, mask=inside)


@jit
def _tile_of_list(tile, count, TOKENS: tl.constexpr, FEW: tl.constexpr):
    """First token of a tile and the end of its tokens: what is left behind the last, if it is few, goes along."""
    start = tile * TOKENS
    return start, tl.where(count - start <= TOKENS + FEW, count, start + TOKENS)


@jit_for_any("capacity")
def _gate_up_kernel(
    x_ptr, w_ptr, out_ptr, counts_ptr, assignments_ptr, capacity, depth, width,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """gelu(x Wg) * (x Wu) for a tile of one expert's columns and the tokens of this program's share."""
    take_turn(EARLY)
    expert = tl.program_id(2)
    count = tl.minimum(tl.load(counts_ptr + expert), capacity)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # Columns beyond the last read the last one, and are never stored.
    w_ptr += (expert.to(tl.int64) * 2 * width + tl.minimum(n, width - 1))[:, None] * depth
    list_ptr = assignments_ptr + expert * capacity
    tiles = tl.maximum(tl.cdiv(count - FEW, TOKENS), tl.minimum(count, 1))
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        start, end = _tile_of_list(tile, count, TOKENS, FEW)
        if end - start > TOKENS:
            _gate_up_tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
                TOP_K, TOKENS, FEW, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip
        elif end - start <= FEW:
            _gate_up_tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
                TOP_K, FEW, 0, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
                TOP_K, TOKENS, 0, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip


@jit
def _gate_up_tile(
    x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, MORE: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens and, with the same reading of the weights, MORE behind them."""
    k = tl.arange(0, DEPTH)
    gate_ptr = w_ptr + k[None, :]
    up_ptr = gate_ptr + width * depth
    assignment, taken = _listed(list_ptr, start, end, TOKENS)
    row_ptr = x_ptr + (assignment // TOP_K)[:, None] * depth + k[None, :]
    gate = tl.zeros([COLUMNS, TOKENS], dtype=tl.float32)
    up = tl.zeros([COLUMNS, TOKENS], dtype=tl.float32)
    if MORE > 0:
        more_assignment, more_taken = _listed(list_ptr, start + TOKENS, end, MORE)
        more_ptr = x_ptr + (more_assignment // TOP_K)[:, None] * depth + k[None, :]
        more_gate = tl.zeros([COLUMNS, MORE], dtype=tl.float32)
        more_up = tl.zeros([COLUMNS, MORE], dtype=tl.float32)
    for k0 in range(0, depth, DEPTH):
        left = (k < depth - k0)[None, :]
        wg = _load(gate_ptr + k0, left, EVEN)
        wu = _load(up_ptr + k0, left, EVEN)
        x = _load(row_ptr + k0, left, EVEN)
        gate = tl.dot(wg, tl.trans(x), gate, input_precision=PRECISION)
        up = tl.dot(wu, tl.trans(x), up, input_precision=PRECISION)
        if MORE > 0:
            more_x = _load(more_ptr + k0, left, EVEN)
            more_gate = tl.dot(wg, tl.trans(more_x), more_gate, input_precision=PRECISION)
            more_up = tl.dot(wu, tl.trans(more_x), more_up, input_precision=PRECISION)
    _store_columns(gelu(gate) * up, out_ptr, assignment, taken, n, width)
    if MORE > 0:
        _store_columns(gelu(more_gate) * more_up, out_ptr, more_assignment, more_taken, n, width)


@jit
def _listed(list_ptr, start, end, TOKENS: tl.constexpr):
    t = start + tl.arange(0, TOKENS)
    return tl.load(list_ptr + t, mask=t < end, other=0).to(tl.int64), t < end


@jit
def _load(ptr, left, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(ptr)
    return tl.load(ptr, mask=left, other=0.0)


@jit
def _store_columns(y, out_ptr, assignment, taken, n, width):
    """y [columns, tokens] to rows of their assignments."""
    at = assignment[:, None] * width + n[None, :]
    y = tl.trans(y.to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + at, y, mask=taken[:, None] & (n < width)[None, :])


@jit_for_any("capacity")
def _down_kernel(
    x_ptr, w_ptr, out_ptr, counts_ptr, assignments_ptr, capacity, depth, width,
    TOKENS: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x W for a tile of one expert's columns and the tokens of this program's share; a row for each assignment."""
    take_turn(EARLY)
    expert = tl.program_id(2)
    count = tl.minimum(tl.load(counts_ptr + expert), capacity)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    w_ptr += (expert.to(tl.int64) * width + tl.minimum(n, width - 1))[:, None] * depth
    list_ptr = assignments_ptr + expert * capacity
    tiles = tl.maximum(tl.cdiv(count - FEW, TOKENS), tl.minimum(count, 1))
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        start, end = _tile_of_list(tile, count, TOKENS, FEW)
        if end - start > TOKENS:
            _down_tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
                TOKENS, FEW, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip
        elif end - start <= FEW:
            _down_tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
                FEW, 0, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip
        else:
            _down_tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
                TOKENS, 0, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip


@jit
def _down_tile(
    x_ptr, w_ptr, out_ptr, list_ptr, start, end, n, depth, width,
    TOKENS: tl.constexpr, MORE: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_gate_up_tile`."""
    k = tl.arange(0, DEPTH)
    weight_ptr = w_ptr + k[None, :]
    assignment, taken = _listed(list_ptr, start, end, TOKENS)
    row_ptr = x_ptr + assignment[:, None] * depth + k[None, :]
    acc = tl.zeros([COLUMNS, TOKENS], dtype=tl.float32)
    if MORE > 0:
        more_assignment, more_taken = _listed(list_ptr, start + TOKENS, end, MORE)
        more_ptr = x_ptr + more_assignment[:, None] * depth + k[None, :]
        more = tl.zeros([COLUMNS, MORE], dtype=tl.float32)
    for k0 in range(0, depth, DEPTH):
        left = (k < depth - k0)[None, :]
        w = _load(weight_ptr + k0, left, EVEN)
        acc = tl.dot(w, tl.trans(_load(row_ptr + k0, left, EVEN)), acc, input_precision=PRECISION)
        if MORE > 0:
            more = tl.dot(w, tl.trans(_load(more_ptr + k0, left, EVEN)), more, input_precision=PRECISION)
    _store_columns(acc, out_ptr, assignment, taken, n, width)
    if MORE > 0:
        _store_columns(more, out_ptr, more_assignment, more_taken, n, width)


def route(x: Tensor, weight: Tensor, gain: Tensor, parts: Tensor, weights: Tensor, routing: Routing) -> None:
    """Choose each token's experts and list each expert's assignments.

    Args:
        x: the router's input [tokens, H]; weight [experts, H]; their product runs in fp32 to the end, since the choice
            hangs on small differences.
        gain: per-expert scale [experts].
        parts: fp32, at least `router_parts(H)` * tokens * experts entries.
        weights: fp32 [tokens, top_k], filled: softmax over all experts, the chosen ones' made to sum to 1, times gain.
            Equal scores: the lower expert.
        routing: counts must be zero; filled.
    """
    tokens, depth = x.shape
    experts = len(weight)
    top_k = weights.shape[1]
    block = triton.next_power_of_2(experts)
    count = router_parts(depth)
    _router_kernel[(triton.cdiv(tokens, 32), count)](
        x, weight, parts, tokens, experts, depth,
        ROWS=32, EXPERTS_BLOCK=max(16, block), DEPTH=64, SPAN=_ROUTER_SPAN, PRECISION=_precision(x),
        num_warps=4, **early(x.device),
    )  # fmt: skip
    _route_kernel[(tokens,)](
        parts, gain, weights, routing.counts, routing.assignments, tokens, routing.assignments.shape[1], experts,
        PARTS=count, TOP_K=top_k, EXPERTS_BLOCK=block, TOP_BLOCK=triton.next_power_of_2(top_k),
        num_warps=1, **early(x.device),
    )  # fmt: skip


_ROUTER_SPAN = 256


def router_parts(depth: int) -> int:
    """How many parts of the depth the router's scores are summed from."""
    return int(triton.cdiv(depth, _ROUTER_SPAN))


def gate_up(
    x: Tensor, weight: Tensor, out: Tensor, routing: Routing, *, top_k: int, tiles: ExpertTiles
) -> None:
    """First product: x [tokens, H], weight [experts, 2 * I, H], gate first -> out [tokens * top_k, I]."""
    experts, double, depth = weight.shape
    width = double // 2
    _gate_up_kernel[(tiles.shares, triton.cdiv(width, tiles.columns), experts)](
        x, weight, out, routing.counts, routing.assignments, routing.assignments.shape[1], depth, width,
        TOP_K=top_k, TOKENS=tiles.tokens, FEW=tiles.few, COLUMNS=tiles.columns, DEPTH=tiles.depth,
        EVEN=depth % tiles.depth == 0, PRECISION=_precision(x),
        num_warps=tiles.warps, num_stages=tiles.stages, **early(x.device),
    )  # fmt: skip


def down(x: Tensor, weight: Tensor, out: Tensor, routing: Routing, *, tiles: ExpertTiles) -> None:
    """Second product: x [assignments, I], weight [experts, H, I] -> out [assignments, H], not yet weighted."""
    experts, width, depth = weight.shape
    _down_kernel[(tiles.shares, triton.cdiv(width, tiles.columns), experts)](
        x, weight, out, routing.counts, routing.assignments, routing.assignments.shape[1], depth, width,
        TOKENS=tiles.tokens, FEW=tiles.few, COLUMNS=tiles.columns, DEPTH=tiles.depth,
        EVEN=depth % tiles.depth == 0, PRECISION=_precision(x),
        num_warps=tiles.warps, num_stages=tiles.stages, **early(x.device),
    )  # fmt: skip


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"
