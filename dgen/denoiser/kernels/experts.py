"""The experts' products over the router's lists: each expert's weights are read once for a tile of its tokens.

A token's result does not depend on its place in a list or tile. The weights stand on the M side of the matrix
units, which is never less than 64 wide, while an expert may have few tokens. fp32 accumulation, GELU in the first
one's epilogue.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgen.denoiser.kernels.norms import gelu
from dgen.denoiser.kernels.router import Routing
from dgen.jit import early, jit, jit_for_any, precision, take_turn, tl, triton


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Shape of a product's work: tokens of a tile and how many more it may take, columns, depth, warps, stages, and
    whether an expert's tiles are spread over programs or one program takes them all in turn."""

    tokens: int
    few: int
    columns: int
    depth: int
    warps: int
    stages: int
    spread: bool


@jit
def _split(count, TOKENS: tl.constexpr, FEW: tl.constexpr):
    """Into how many tiles an expert's tokens are cut, and of how many tokens: alike, and multiples of FEW."""
    tiles = tl.cdiv(count, TOKENS + FEW)
    return tiles, tl.cdiv(tl.cdiv(count, tl.maximum(tiles, 1)), FEW) * FEW


@jit
def _find_tile(
    number, counts_ptr, capacity, experts, TOKENS: tl.constexpr, FEW: tl.constexpr, EXPERTS_BLOCK: tl.constexpr,
):  # fmt: skip
    """Expert, count and place of one of all experts' tiles; a count of 0 where there are not so many.

    Wide tiles come first: what runs last is short, and leaves the card idle for less.
    """
    expert = tl.arange(0, EXPERTS_BLOCK)
    count = tl.load(counts_ptr + expert, mask=expert < experts, other=0)
    count = tl.minimum(count, capacity)
    tiles, size = _split(count, TOKENS, FEW)
    wide = tl.where(size > TOKENS // 2, tiles, 0)
    narrow = tiles - wide
    begin = tl.where(wide > 0, tl.cumsum(wide) - wide, tl.sum(wide) + tl.cumsum(narrow) - narrow)
    here = (begin <= number) & (number < begin + tiles)
    found = tl.sum(tl.where(here, expert, 0))
    return found, tl.sum(tl.where(here, count, 0)), tl.sum(tl.where(here, number - begin, 0))


@jit_for_any("capacity")
def _product_kernel(
    x_ptr, w_ptr, out_ptr, counts_ptr, assignments_ptr, capacity, depth, width, experts,
    GATED: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, SPREAD: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, EVEN: tl.constexpr, HALF_TAIL: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some columns of x W, or of gelu(x Wg) * (x Wu), for one expert's tokens, or one tile of them if SPREAD."""
    take_turn(EARLY)
    if SPREAD:
        expert, count, tile = _find_tile(
            tl.program_id(1), counts_ptr, capacity, experts, TOKENS, FEW, EXPERTS_BLOCK
        )
        tiles, size = _split(count, TOKENS, FEW)
        tiles = tl.minimum(tiles, tile + 1)
    else:
        expert, tile = tl.program_id(1), 0
        count = tl.minimum(tl.load(counts_ptr + expert), capacity)
        tiles, size = _split(count, TOKENS, FEW)
    list_ptr = assignments_ptr + expert * capacity
    w_ptr += expert.to(tl.int64) * width * (2 if GATED else 1) * depth
    column = tl.program_id(0) * COLUMNS
    HALF: tl.constexpr = TOKENS // 2
    for at in range(tile, tiles):
        start = at * size
        end = tl.minimum(start + size, count)
        if HALF_TAIL and column + COLUMNS > width:
            # As for the other columns, but in two shapes alone: each is compiled.
            if end - start > TOKENS:
                _tile(
                    x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                    GATED, TOP_K, TOKENS, FEW, COLUMNS // 2, DEPTH, EVEN, PRECISION,
                )  # fmt: skip
            else:
                _tile(
                    x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                    GATED, TOP_K, TOKENS, 0, COLUMNS // 2, DEPTH, EVEN, PRECISION,
                )  # fmt: skip
        elif end - start > TOKENS:
            _tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                GATED, TOP_K, TOKENS, FEW, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip
        elif end - start <= FEW:
            _tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                GATED, TOP_K, FEW, 0, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip
        elif HALF > FEW:
            if end - start <= HALF:
                _tile(
                    x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                    GATED, TOP_K, HALF, 0, COLUMNS, DEPTH, EVEN, PRECISION,
                )  # fmt: skip
            elif end - start <= HALF + FEW:
                _tile(
                    x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                    GATED, TOP_K, HALF, FEW, COLUMNS, DEPTH, EVEN, PRECISION,
                )  # fmt: skip
            else:
                _tile(
                    x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                    GATED, TOP_K, TOKENS, 0, COLUMNS, DEPTH, EVEN, PRECISION,
                )  # fmt: skip
        else:
            _tile(
                x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
                GATED, TOP_K, TOKENS, 0, COLUMNS, DEPTH, EVEN, PRECISION,
            )  # fmt: skip


@jit
def _tile(
    x_ptr, w_ptr, out_ptr, list_ptr, start, end, column, depth, width,
    GATED: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr, MORE: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens and, with the same reading of the weights, MORE behind them."""
    k = tl.arange(0, DEPTH)
    n = column + tl.arange(0, COLUMNS)
    # Columns beyond the last read the last one, and are never stored.
    w_ptr += tl.minimum(n, width - 1)[:, None] * depth + k[None, :]
    assignment, taken = _listed(list_ptr, start, end, TOKENS)
    row_ptr = x_ptr + (assignment // TOP_K)[:, None] * depth + k[None, :]
    acc = tl.zeros([COLUMNS, TOKENS], dtype=tl.float32)
    if GATED:
        up = tl.zeros([COLUMNS, TOKENS], dtype=tl.float32)
    if MORE > 0:
        more_assignment, more_taken = _listed(list_ptr, start + TOKENS, end, MORE)
        more_ptr = x_ptr + (more_assignment // TOP_K)[:, None] * depth + k[None, :]
        more_acc = tl.zeros([COLUMNS, MORE], dtype=tl.float32)
        if GATED:
            more_up = tl.zeros([COLUMNS, MORE], dtype=tl.float32)
    for k0 in range(0, depth, DEPTH):
        left = (k < depth - k0)[None, :]
        w = _load(w_ptr + k0, left, EVEN)
        x = tl.trans(_load(row_ptr + k0, left, EVEN))
        acc = tl.dot(w, x, acc, input_precision=PRECISION)
        if GATED:
            w_up = _load(w_ptr + width * depth + k0, left, EVEN)
            up = tl.dot(w_up, x, up, input_precision=PRECISION)
        if MORE > 0:
            more_x = tl.trans(_load(more_ptr + k0, left, EVEN))
            more_acc = tl.dot(w, more_x, more_acc, input_precision=PRECISION)
            if GATED:
                more_up = tl.dot(w_up, more_x, more_up, input_precision=PRECISION)
    if GATED:
        acc = gelu(acc) * up
    _store_columns(acc, out_ptr, assignment, taken, n, width)
    if MORE > 0:
        if GATED:
            more_acc = gelu(more_acc) * more_up
        _store_columns(more_acc, out_ptr, more_assignment, more_taken, n, width)


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


def gate_up(
    x: Tensor, weight: Tensor, out: Tensor, routing: Routing, *, top_k: int, tiles: ExpertTiles
) -> None:
    """First product: x [tokens, H], weight [experts, 2 * I, H], gate first -> out [tokens * top_k, I]."""
    _launch(x, weight, out, routing, tiles, width=weight.shape[1] // 2, top_k=top_k, gated=True)


def down(x: Tensor, weight: Tensor, out: Tensor, routing: Routing, *, tiles: ExpertTiles) -> None:
    """Second product: x [assignments, I], weight [experts, H, I] -> out [assignments, H], not yet weighted."""
    _launch(x, weight, out, routing, tiles, width=weight.shape[1], top_k=1, gated=False)


def _launch(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    routing: Routing,
    tiles: ExpertTiles,
    *,
    width: int,
    top_k: int,
    gated: bool,
) -> None:
    experts, _, depth = weight.shape
    # Every expert may have a tile that is not full.
    most = len(out) // (tiles.tokens + tiles.few) + experts if tiles.spread else experts
    _product_kernel[(triton.cdiv(width, tiles.columns), most)](
        x, weight, out, routing.counts, routing.assignments, routing.assignments.shape[1], depth, width, experts,
        GATED=gated, TOP_K=top_k, TOKENS=tiles.tokens, FEW=tiles.few, COLUMNS=tiles.columns, DEPTH=tiles.depth,
        SPREAD=tiles.spread, EXPERTS_BLOCK=triton.next_power_of_2(experts), EVEN=depth % tiles.depth == 0,
        HALF_TAIL=0 < width % tiles.columns <= tiles.columns // 2, PRECISION=precision(x),
        num_warps=tiles.warps, num_stages=tiles.stages, **early(x.device),
    )  # fmt: skip
