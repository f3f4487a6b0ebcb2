"""Router and experts against plain loops in double precision."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from close import assert_close

from dgen.denoiser.kernels.experts import ExpertTiles, down, gate_up
from dgen.denoiser.kernels.router import Routing, route, router_parts

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
MARK = 12345
CUDA = torch.cuda.is_available()


def routed(x, weight, gain, top_k, capacity=None):
    """Weights, counts, and the lists, each followed by marks which nothing may write over."""
    tokens, depth = x.shape
    experts = len(weight)
    capacity = tokens if capacity is None else capacity
    lists = torch.full((experts * capacity + 64,), MARK, dtype=torch.int32, device=x.device)
    counts = torch.zeros(experts, dtype=torch.int32, device=x.device)
    shares = torch.empty(tokens, top_k, device=x.device)
    parts = torch.empty(router_parts(depth) * tokens * experts, device=x.device)
    routing = Routing(counts, lists[: experts * capacity].view(experts, capacity))
    route(x, weight, gain, parts, shares, routing)
    assert (lists[experts * capacity :] == MARK).all(), "a list ran over"
    return shares, routing


def choices(routing, tokens, top_k) -> list[list[int]]:
    """Each token's experts in the order of their places, from the lists."""
    found = [[-1] * top_k for _ in range(tokens)]
    for expert, count in enumerate(routing.counts.tolist()):
        taken = routing.assignments[expert, :count].tolist()
        assert len(set(taken)) == count
        for assignment in taken:
            assert found[assignment // top_k][assignment % top_k] == -1
            found[assignment // top_k][assignment % top_k] = expert
    return found


@pytest.mark.parametrize(
    ("tokens", "depth", "experts", "top_k"),
    [(5, 32, 4, 2), (1, 40, 1, 1), (33, 300, 7, 3), (9, 520, 130, 8)],
)
def test_tokens_go_to_the_experts_with_the_highest_scores(draw, dtype, tokens, depth, experts, top_k):
    x, weight, gain = (
        draw(tokens, depth, dtype=dtype),
        draw(experts, depth, dtype=dtype),
        draw(experts, dtype=dtype),
    )
    shares, routing = routed(x, weight * 0.2, gain, top_k)
    scores = x.double() @ (weight * 0.2).double().t()
    best = scores.topk(top_k)
    assert choices(routing, tokens, top_k) == best.indices.tolist()
    want = best.values.softmax(-1) * gain.double()[best.indices]
    assert_close(shares, want, 1e-5)
    assert int(routing.counts.sum()) == tokens * top_k


def test_equal_scores_go_to_the_lower_expert_and_share_alike(device):
    x = torch.eye(16, device=device)[:4]
    weight = torch.zeros(6, 16, device=device)
    weight[:, 1] = torch.tensor([0.0, 2.0, 1.0, 2.0, 2.0, 1.0], device=device)
    weight[:, 2] = -3.0
    weight[4:, 3] = 5.0
    shares, routing = routed(x, weight, torch.ones(6, device=device), 3)
    assert choices(routing, 4, 3) == [[0, 1, 2], [1, 3, 4], [0, 1, 2], [4, 5, 0]]
    assert_close(shares[:3], torch.full((3, 3), 1 / 3, device=device))


def test_scores_far_apart_are_no_nan(device):
    x = torch.eye(16, device=device)[:1] * 1e4
    weight = torch.zeros(4, 16, device=device)
    weight[2, 0], weight[1, 0] = 1.0, -1.0
    shares, routing = routed(x, weight, torch.full((4,), 3.0, device=device), 4)
    assert choices(routing, 1, 4) == [[2, 0, 3, 1]]
    assert shares.tolist() == [[3.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("capacity", [8, 2])
def test_scores_that_are_no_numbers_run_over_no_list_and_touch_no_other_token(draw, device, bad, capacity):
    x, weight, gain = draw(8, 32), draw(5, 32), draw(5)
    clean, before = routed(x, weight, gain, 2)
    x[[1, 2, 4, 5, 6]] = bad
    shares, routing = routed(x, weight, gain, 2, capacity=capacity)
    assert shares[[1, 2, 4, 5, 6]].isnan().all()
    assert torch.equal(shares[[0, 3, 7]], clean[[0, 3, 7]])
    if capacity == len(x):  # room for every token, as in a pass: none is lost
        now, then = choices(routing, 8, 2), choices(before, 8, 2)
        assert [now[i] for i in (0, 3, 7)] == [then[i] for i in (0, 3, 7)]
        assert all(len(set(row)) == 2 and min(row) >= 0 for row in now)
    listed = routing.assignments[routing.assignments != MARK]
    assert ((listed >= 0) & (listed < 16)).all()


def lists(chosen, experts, device) -> Routing:
    """The routing of tokens to `chosen` [tokens][top_k]; what lies behind a list is out of every range."""
    capacity = len(chosen)
    top_k = len(chosen[0])
    counts = torch.zeros(experts, dtype=torch.int32)
    assignments = torch.full((experts, capacity), 2**30, dtype=torch.int32)
    for token, row in enumerate(chosen):
        for place, expert in enumerate(row):
            assignments[expert, counts[expert]] = token * top_k + place
            counts[expert] += 1
    return Routing(counts.to(device), assignments.to(device))


SIZES = {
    # tokens, hidden, middle, experts, top_k; expert 1 has no token
    "odd": (21, 40, 24, 5, 2),
    "one token": (1, 32, 32, 4, 1),
    "even": (50, 64, 32, 3, 2),
    "one more than few": (17, 32, 16, 3, 2),
}
SHAPES = {
    "in turn": ExpertTiles(tokens=16, few=16, columns=32, depth=32, warps=4, stages=2, spread=False),
    "spread": ExpertTiles(tokens=32, few=16, columns=16, depth=32, warps=4, stages=2, spread=True),
    "wide columns": ExpertTiles(tokens=32, few=16, columns=64, depth=16, warps=4, stages=2, spread=False),
    "few is as many": ExpertTiles(tokens=16, few=16, columns=16, depth=64, warps=4, stages=2, spread=True),
}


@pytest.mark.parametrize(("size", "shape"), product(SIZES, SHAPES))
def test_each_assignment_goes_through_its_own_expert(draw, dtype, device, size, shape):
    tokens, hidden, middle, experts, top_k = SIZES[size]
    tiles = SHAPES[shape]
    # Expert 0 takes every token, the others but the second share what is left.
    others = [e for e in range(experts) if e > 1]
    chosen = [[0, others[token % len(others)]][:top_k] for token in range(tokens)]
    routing = lists(chosen, experts, device)
    x = draw(tokens, hidden, dtype=dtype)
    first, second = (
        draw(experts, 2 * middle, hidden, dtype=dtype) * 0.2,
        draw(experts, hidden, middle, dtype=dtype),
    )
    out = torch.empty(tokens * top_k, middle, dtype=dtype, device=device)
    gate_up(x, first, out, routing, top_k=top_k, tiles=tiles)
    flat = [e for row in chosen for e in row]
    both = torch.stack([first[e].double() @ x[at // top_k].double() for at, e in enumerate(flat)])
    gate, up = both.chunk(2, dim=-1)
    assert_close(out, torch.nn.functional.gelu(gate, approximate="tanh") * up)
    last = torch.empty(tokens * top_k, hidden, dtype=dtype, device=device)
    down(out, second, last, routing, tiles=tiles)
    assert_close(last, torch.stack([second[e].double() @ out[at].double() for at, e in enumerate(flat)]))


@pytest.mark.parametrize("spread", [False, True])
def test_tiles_of_every_width_hold_every_token_once(draw, dtype, device, spread):
    """Counts around each width that a tile is compiled for, and experts without a token between them."""
    counts = [1, 0, 16, 17, 32, 33, 48, 0, 49, 64, 65, 80, 81, 160, 161, 0]
    chosen = [[expert] for expert, count in enumerate(counts) for _ in range(count)]
    routing = lists(chosen, len(counts), device)
    tiles = ExpertTiles(tokens=64, few=16, columns=16, depth=32, warps=4, stages=2, spread=spread)
    x, weight = draw(len(chosen), 32, dtype=dtype), draw(len(counts), 24, 32, dtype=dtype)
    out = torch.full((len(chosen), 24), torch.nan, dtype=dtype, device=device)
    down(x, weight, out, routing, tiles=tiles)
    experts = torch.tensor(chosen, device=device).flatten()
    assert_close(out, (weight.double()[experts] @ x.double()[..., None])[..., 0])


def test_an_overflown_count_reads_no_further_than_its_list(draw, device):
    """As scores that are no numbers leave it: more counted than listed."""
    routing = lists([[0], [0], [0]], 2, device)
    routing.counts[0] = 50
    x, weight = draw(3, 32), draw(2, 64, 32)
    out = torch.empty(3, 32, device=device)
    gate_up(x, weight, out, routing, top_k=1, tiles=SHAPES["in turn"])
    gate, up = (weight[0].double() @ x.double().t()).t().chunk(2, dim=-1)
    assert_close(out, torch.nn.functional.gelu(gate, approximate="tanh") * up)
