"""The router: each token's experts, and each expert's tokens, grouped on the device.

For each expert it writes the list of its assignments (token * top_k + place): no sort, no host. Their order depends
on the run.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgen.jit import constant, early, jit, jit_for_any, precision, take_turn, tl, triton


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tokens go: counts int32 [experts], and assignments int32 [experts, most tokens]."""

    counts: Tensor
    assignments: Tensor


_TAKEN = constant(-(2**31))
"""Below every score, -inf included."""


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
    # Scores that are no numbers make the row's shares none, and choose experts like any others: each once, so that no
    # list holds more than every token, and no other token's place in it is lost.
    broken = tl.sum(tl.where(expert < experts, s, 0.0), axis=0) * 0.0
    # As integers in the order of the scores, which a warp compares in one instruction; -0 counts as 0.
    order = _flipped(tl.where(s == s, s + 0.0, float("-inf")).to(tl.int32, bitcast=True))
    order = tl.where(expert < experts, order, _TAKEN)
    place = tl.arange(0, TOP_BLOCK)
    best = tl.zeros([TOP_BLOCK], dtype=tl.int32)
    chosen = tl.zeros([TOP_BLOCK], dtype=tl.int32)
    for k in tl.static_range(TOP_K):
        largest = tl.max(order, axis=0)
        index = tl.min(tl.where(order == largest, expert, EXPERTS_BLOCK), axis=0)
        best = tl.where(place == k, largest, best)
        chosen = tl.where(place == k, index, chosen)
        order = tl.where(expert == index, _TAKEN, order)
    inside = place < TOP_K
    at = tl.atomic_add(counts_ptr + chosen, 1, mask=inside)
    gain = tl.load(gain_ptr + chosen, mask=inside, other=0.0).to(tl.float32)
    score = _flipped(best).to(tl.float32, bitcast=True)
    share = tl.where(inside, tl.exp(score - tl.max(tl.where(inside, score, float("-inf")), axis=0)), 0.0)
    tl.store(weights_ptr + row * TOP_K + place, share / tl.sum(share, axis=0) * gain + broken, mask=inside)
    inside = inside & (at < capacity)  # always, where a list has room for every token
    tl.store(assignments_ptr + chosen * capacity + at, row * TOP_K + place, mask=inside)


@jit
def _flipped(bits):
    """The bits of fp32 numbers as integers in the numbers' order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


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
        ROWS=32, EXPERTS_BLOCK=max(16, block), DEPTH=64, SPAN=_ROUTER_SPAN, PRECISION=precision(x),
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
