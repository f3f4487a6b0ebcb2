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
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, eps, q_heads, kv_heads, q_blocks,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, HEADS: tl.constexpr, V_FROM_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one row: of q in the first `q_blocks` programs of a row, of k and v in the others."""
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    column = tl.arange(0, HALF_BLOCK)
    is_query = block < q_blocks
    head = tl.where(is_query, block, block - q_blocks) * HEADS + tl.arange(0, HEADS)
    inside = (head < tl.where(is_query, q_heads, kv_heads))[:, None] & (column < HALF)[None, :]
    first = row * (q_heads + 2 * kv_heads) + tl.where(is_query, 0, q_heads)
    at = qkv_ptr + (first + head)[:, None] * (2 * HALF) + column[None, :]
    kind = qkv_ptr.dtype.element_ty
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    scale = _rms_of_halves(low, high, HALF, eps)
    if is_query == 0:
        v_at = at + kv_heads * 2 * HALF
        v_low, v_high, v_scale = low, high, scale
        if V_FROM_K == 0:
            v_low = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
            v_high = tl.load(v_at + HALF, mask=inside, other=0.0).to(tl.float32)
            v_scale = _rms_of_halves(v_low, v_high, HALF, eps)
        tl.store(v_at, (v_low * v_scale[:, None]).to(kind), mask=inside)
        tl.store(v_at + HALF, (v_high * v_scale[:, None]).to(kind), mask=inside)
    norm_ptr = k_norm_ptr
    if is_query:
        norm_ptr = q_norm_ptr
    half = column < HALF
    low_norm = tl.load(norm_ptr + column, mask=half, other=0.0).to(tl.float32)
    high_norm = tl.load(norm_ptr + HALF + column, mask=half, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * HALF + column, mask=half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + row * HALF + column, mask=half, other=0.0)[None, :]
    low *= scale[:, None] * low_norm[None, :]
    high *= scale[:, None] * high_norm[None, :]
    tl.store(at, (low * cos - high * sin).to(kind), mask=inside)
    tl.store(at + HALF, (high * cos + low * sin).to(kind), mask=inside)


@jit
def _rms_of_halves(low, high, HALF: tl.constexpr, eps):
    return tl.math.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * HALF) + eps)


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
    half = width // 2
    block = triton.next_power_of_2(half)
    at_once = max(1, min(8, triton.next_power_of_2(kv_heads), 2048 // block))
    q_blocks = 0 if keys_only else triton.cdiv(q_heads, at_once)
    _norm_and_rotate_kernel[(rows, q_blocks + triton.cdiv(kv_heads, at_once))](
        qkv, q_norm, k_norm, cos, sin, eps, q_heads, kv_heads, q_blocks,
        HALF=half, HALF_BLOCK=block, HEADS=at_once, V_FROM_K=v_from_k,
        num_warps=max(1, at_once * block // 256), **early(qkv.device),
    )  # fmt: skip
