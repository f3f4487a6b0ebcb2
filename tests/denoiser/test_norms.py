"""Norms, residuals and activations between products, against the formulas in double precision."""

from __future__ import annotations

import pytest
import torch
from close import assert_close

from dgen.denoiser.kernels import norms

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
EPS = 1e-6


def normed(x, weight=None):
    x = x.double()
    x = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return x if weight is None else x * weight.double()


def gelu(x):
    return torch.nn.functional.gelu(x.double(), approximate="tanh")


@pytest.mark.parametrize("width", [16, 40, 515])
@pytest.mark.parametrize("with_signal", [False, True])
def test_embedding_rows_are_scaled_conditioned_and_normed(draw, dtype, device, width, with_signal):
    table, weight = draw(11, width, dtype=dtype), draw(width, dtype=dtype)
    scale = torch.tensor(width**0.5, device=device)
    ids = torch.tensor([10, 0, 3, 3, 7], device=device)
    signal = draw(5, width, dtype=dtype) if with_signal else None
    residual = torch.empty(5, width, device=device)
    out = torch.empty(5, width, dtype=dtype, device=device)
    norms.embed(ids, table, scale, signal, weight, EPS, residual, out)
    want = table[ids].double() * scale.to(dtype).double()
    if signal is not None:
        want = normed(want + signal.double())
    assert_close(residual, want)
    assert_close(out, normed(want, weight))


def test_a_zero_signal_still_norms_the_embedding_which_no_signal_leaves_alone(draw, device):
    table, weight = 3 * draw(4, 24), draw(24)
    scale, ids = torch.tensor(2.0, device=device), torch.tensor([1, 2], device=device)
    bare, zero = torch.empty(2, 24, device=device), torch.empty(2, 24, device=device)
    out = torch.empty(2, 24, device=device)
    norms.embed(ids, table, scale, None, weight, EPS, bare, out)
    norms.embed(ids, table, scale, torch.zeros(2, 24, device=device), weight, EPS, zero, out)
    assert_close(bare, 2 * table[ids])
    assert_close(zero, normed(2 * table[ids]))


def test_slots_are_normed_in_the_order_asked_for(draw, dtype, device):
    x, weight = draw(4, 3, 40, dtype=dtype), draw(40, dtype=dtype)
    x[1] = 0.0  # no self-conditioning yet
    slots = torch.tensor([3, 1, 0, 3], device=device)
    out = torch.empty(12, 40, dtype=dtype, device=device)
    norms.rms_norm_slots(x, slots, weight, EPS, out)
    assert_close(out, normed(x, weight)[slots].reshape(12, 40))
    assert not out[3:6].any()


@pytest.mark.parametrize(("width", "experts"), [(40, 5), (64, 4), (1030, 130)])
def test_attention_joins_the_residual_and_feeds_three(draw, dtype, device, width, experts):
    rows = 3
    attended = draw(rows, width, dtype=dtype)
    residual, post = draw(rows, width), draw(width, dtype=dtype)
    weights = tuple(draw(width, dtype=dtype) for _ in range(3))
    outs = tuple(torch.empty(rows, width, dtype=dtype, device=device) for _ in range(3))
    counts = torch.full((experts + 4,), 9, dtype=torch.int32, device=device)
    h = residual.double() + normed(attended, post)
    norms.after_attention(
        attended,
        residual,
        post=post,
        norms=weights,
        router_gain=width**-0.5,
        eps=EPS,
        outs=outs,
        counts=counts[:experts],
    )
    assert_close(residual, h)
    for out, weight, gain in zip(outs, weights, (1, 1, width**-0.5), strict=True):
        assert_close(out, normed(h, weight) * gain)
    assert counts.tolist() == [0] * experts + [9] * 4


@pytest.mark.parametrize(("width", "top_k"), [(40, 1), (64, 3), (1030, 8)])
def test_experts_and_mlp_close_a_layer(draw, dtype, device, width, top_k):
    rows = 3
    mlp, expert_out = draw(rows, width, dtype=dtype), draw(rows * top_k, width, dtype=dtype)
    shares, residual = draw(rows, top_k).abs(), draw(rows, width)
    after_mlp, after_experts, closing, following = (draw(width, dtype=dtype) for _ in range(4))
    scalar = torch.tensor([0.75], dtype=dtype, device=device)
    out = torch.empty(rows, width, dtype=dtype, device=device)
    moe = (expert_out.double().view(rows, top_k, width) * shares.double()[..., None]).sum(1)
    both = normed(moe, after_experts) + normed(mlp, after_mlp)
    h = (residual.double() + normed(both, closing)) * 0.75
    norms.after_experts(
        mlp,
        expert_out,
        shares,
        residual,
        norms=(after_mlp, after_experts, closing),
        scalar=scalar,
        next_norm=following,
        eps=EPS,
        out=out,
    )
    assert_close(residual, h)
    assert_close(out, normed(h, following))


@pytest.mark.parametrize("width", [16, 40, 1500])
def test_gelu_multiplies_up_by_gate(draw, dtype, device, width):
    x = draw(3, 2 * width, dtype=dtype)
    x[0, :4] = torch.tensor([-60.0, -3.0, 40.0, 0.0], device=device)  # beyond what exp holds, both ways
    out = torch.empty(3, width, dtype=dtype, device=device)
    norms.gelu_product(x, out)
    assert_close(out, gelu(x[:, :width]) * x[:, width:].double())
