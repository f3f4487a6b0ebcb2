"""What happens to q, k and v between their product and attention: a norm for each head, and rotary positions.

The buffer of a pass holds, for each row, the heads of q, then of k, then of v. A layer without a value product
takes v from k as it was before its norm. fp32 inside, one rounding at the end.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from torch import Tensor

from dgen.jit import early, jit, take_turn, tl, triton


@jit
def _norm_and_rotate_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, eps, first_head, q_heads, kv_heads,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, V_FROM_K: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) + first_head
    column = tl.arange(0, HALF_BLOCK)
    inside = column < HALF
    at = qkv_ptr + (row * (q_heads + 2 * kv_heads) + head) * (2 * HALF) + column
    kind = qkv_ptr.dtype.element_ty
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    scale = _rms_of_halves(low, high, HALF, eps)
    is_query = head < q_heads
    if is_query == 0:
        v_at = at + kv_heads * 2 * HALF
        v_low, v_high, v_scale = low, high, scale
        if V_FROM_K == 0:
            v_low = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
            v_high = tl.load(v_at + HALF, mask=inside, other=0.0).to(tl.float32)
            v_scale = _rms_of_halves(v_low, v_high, HALF, eps)
        tl.store(v_at, (v_low * v_scale).to(kind), mask=inside)
        tl.store(v_at + HALF, (v_high * v_scale).to(kind), mask=inside)
    norm_ptr = k_norm_ptr
    if is_query:
        norm_ptr = q_norm_ptr
    low *= scale * tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
    high *= scale * tl.load(norm_ptr + HALF + column, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * HALF + column, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + row * HALF + column, mask=inside, other=0.0)
    tl.store(at, (low * cos - high * sin).to(kind), mask=inside)
    tl.store(at + HALF, (high * cos + low * sin).to(kind), mask=inside)


@jit
def _rms_of_halves(low, high, HALF: tl.constexpr, eps):
    return tl.math.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / (2 * HALF) + eps)


def norm_and_rotate(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    *,
    heads: tuple[int, int],
    v_from_k: bool,
    keys_only: bool = False,
) -> None:
    """Norm and rotate a pass's heads in place.

    Args:
        qkv: [rows, q heads + 2 * kv heads, D], as the products wrote it; with `v_from_k` v's part is written here.
        q_norm, k_norm: weights [D]; v's norm has none.
        cos, sin: fp32 [rows, D / 2], of each row's position: one angle turns entries i and i + D / 2.
        heads: how many q and kv heads.
        keys_only: leave the q heads alone.
    """
    rows, _, width = qkv.shape
    q_heads, kv_heads = heads
    first = q_heads if keys_only else 0
    half = width // 2
    _norm_and_rotate_kernel[(rows, q_heads + kv_heads - first)](
        qkv, q_norm, k_norm, cos, sin, eps, first, q_heads, kv_heads,
        HALF=half, HALF_BLOCK=triton.next_power_of_2(half), V_FROM_K=v_from_k, num_warps=1, **early(qkv.device),
    )  # fmt: skip
