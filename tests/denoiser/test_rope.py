"""Norm and rotary positions of q, k and v, in place."""

from __future__ import annotations

import pytest
import torch
from close import assert_close

from dgen.denoiser.kernels.rope import norm_and_rotate

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
EPS = 1e-6


def normed(x, weight=None):
    x = x.double()
    x = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return x if weight is None else x * weight.double()


def rotated(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "size"),
    [(4, 2, 8), (1, 1, 2), (3, 3, 14), (6, 1, 40), (16, 8, 34), (5, 5, 16)],
)
@pytest.mark.parametrize("kind", ["v of its own", "v from k", "keys only", "keys only, v from k"])
def test_heads_are_normed_and_turned(draw, dtype, device, q_heads, kv_heads, size, kind):
    rows, v_from_k, keys_only = 3, "v from k" in kind, "keys only" in kind
    qkv = draw(rows, q_heads + 2 * kv_heads, size, dtype=dtype)
    q_norm, k_norm = draw(size, dtype=dtype), draw(size, dtype=dtype)
    angles = torch.arange(rows)[:, None] * 1.3 + torch.arange(size // 2) * 0.7
    cos, sin = (1.1 * angles.cos()).to(device), (1.1 * angles.sin()).to(device)
    q, k, v = qkv.split([q_heads, kv_heads, kv_heads], dim=1)
    v = k if v_from_k else v
    want_q = q.double() if keys_only else rotated(normed(q, q_norm), cos, sin)
    want = torch.cat([want_q, rotated(normed(k, k_norm), cos, sin), normed(v)], dim=1)
    if v_from_k:
        qkv[:, q_heads + kv_heads :] = float("nan")  # no product writes there
    norm_and_rotate(
        qkv,
        q_norm,
        k_norm,
        cos,
        sin,
        EPS,
        heads=(q_heads, kv_heads),
        v_from_k=v_from_k,
        keys_only=keys_only,
    )
    assert_close(qkv, want)
