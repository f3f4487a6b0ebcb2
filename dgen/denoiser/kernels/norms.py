"""RMS norms and what stands between two products of a layer: embeddings, residuals, norms, expert weights.

The residual stream is fp32, every product's input is in the model's dtype, and one program takes one row. The
formulas are those of transformers' modeling_diffusion_gemma; sums and norms run in fp32 and round once.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from torch import Tensor

from dgen.jit import early, jit, take_turn, tl, triton


@jit
def rms_scale(x, width, eps):
    """1 / sqrt(mean(x^2) + eps) of a row that is zero beyond `width`."""
    return tl.math.rsqrt(tl.sum(x * x, axis=0) / width + eps)


@jit
def _embed_kernel(
    ids_ptr, table_ptr, scale_ptr, signal_ptr, weight_ptr, residual_ptr, out_ptr, width, eps,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The residual stream's first row: scaled embedding, plus the self-conditioning signal and a bare norm if any."""
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    token = tl.load(ids_ptr + row)
    x = tl.load(table_ptr + token * width + column, mask=inside, other=0.0).to(tl.float32)
    x *= tl.load(scale_ptr).to(table_ptr.dtype.element_ty).to(tl.float32)
    if signal_ptr is not None:
        x += tl.load(signal_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
        x *= rms_scale(x, width, eps)
    tl.store(residual_ptr + row * width + column, x, mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    x = x * rms_scale(x, width, eps) * weight
    tl.store(out_ptr + row * width + column, x.to(out_ptr.dtype.element_ty), mask=inside)


@jit
def _rms_norm_slots_kernel(
    x_ptr, slots_ptr, weight_ptr, out_ptr, rows_per_slot, width, eps, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    source = tl.load(slots_ptr + row // rows_per_slot) * rows_per_slot + row % rows_per_slot
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + source * width + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    x = x * rms_scale(x, width, eps) * weight
    tl.store(out_ptr + row * width + column, x.to(out_ptr.dtype.element_ty), mask=inside)


@jit
def _after_attention_kernel(
    attended_ptr, residual_ptr, post_ptr, mlp_norm_ptr, moe_norm_ptr, router_norm_ptr,
    mlp_ptr, moe_ptr, router_ptr, counts_ptr, width, eps, router_gain, experts,
    BLOCK: tl.constexpr, EXPERTS_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Residual + norm(attention); then the three normed inputs of MLP, experts and router from one read.

    All that is read is asked for at once: each sum over a row is a barrier that later loads would wait behind.
    """
    column = tl.arange(0, BLOCK)
    inside = column < width
    post = tl.load(post_ptr + column, mask=inside, other=0.0)
    mlp_gain = tl.load(mlp_norm_ptr + column, mask=inside, other=0.0)
    moe_gain = tl.load(moe_norm_ptr + column, mask=inside, other=0.0)
    router_norm = tl.load(router_norm_ptr + column, mask=inside, other=0.0)
    take_turn(EARLY)  # weights are nobody's output
    row = tl.program_id(0).to(tl.int64)
    if row == 0:  # the router, which counts, comes later
        expert = tl.arange(0, EXPERTS_BLOCK)
        tl.store(counts_ptr + expert, tl.zeros([EXPERTS_BLOCK], dtype=tl.int32), mask=expert < experts)
    at = row * width + column
    y = tl.load(attended_ptr + at, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + at, mask=inside, other=0.0)
    h = residual + y * rms_scale(y, width, eps) * post.to(tl.float32)
    tl.store(residual_ptr + at, h, mask=inside)
    h *= rms_scale(h, width, eps)
    kind = mlp_ptr.dtype.element_ty
    tl.store(mlp_ptr + at, (h * mlp_gain.to(tl.float32)).to(kind), mask=inside)
    tl.store(moe_ptr + at, (h * moe_gain.to(tl.float32)).to(kind), mask=inside)
    router_gain_row = router_norm.to(tl.float32) * router_gain
    tl.store(router_ptr + at, (h * router_gain_row).to(kind), mask=inside)


@jit
def _after_experts_kernel(
    mlp_ptr, expert_out_ptr, expert_weights_ptr, residual_ptr, mlp_norm_ptr, moe_norm_ptr, post_ptr, scalar_ptr,
    next_norm_ptr, out_ptr, width, eps, TOP_K: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Experts weighted and summed, both halves normed and added to the residual, the next layer's input normed.

    Reads as `_after_attention_kernel` does.
    """
    column = tl.arange(0, BLOCK)
    inside = column < width
    moe_gain = tl.load(moe_norm_ptr + column, mask=inside, other=0.0)
    mlp_gain = tl.load(mlp_norm_ptr + column, mask=inside, other=0.0)
    post = tl.load(post_ptr + column, mask=inside, other=0.0)
    next_norm = tl.load(next_norm_ptr + column, mask=inside, other=0.0)
    scalar = tl.load(scalar_ptr).to(tl.float32)
    take_turn(EARLY)  # weights are nobody's output
    row = tl.program_id(0).to(tl.int64)
    at = row * width + column
    residual = tl.load(residual_ptr + at, mask=inside, other=0.0)
    mlp = tl.load(mlp_ptr + at, mask=inside, other=0.0)
    moe = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        share = tl.load(expert_weights_ptr + row * TOP_K + k)
        y = tl.load(expert_out_ptr + (row * TOP_K + k) * width + column, mask=inside, other=0.0)
        moe += share * y.to(tl.float32)
    y = mlp.to(tl.float32)
    x = moe * rms_scale(moe, width, eps) * moe_gain.to(tl.float32)
    x += y * rms_scale(y, width, eps) * mlp_gain.to(tl.float32)
    h = (residual + x * rms_scale(x, width, eps) * post.to(tl.float32)) * scalar
    tl.store(residual_ptr + at, h, mask=inside)
    x = h * rms_scale(h, width, eps) * next_norm.to(tl.float32)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=inside)


@jit
def _gelu_product_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(x_ptr + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, (gelu(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)


@jit
def gelu(x):
    """GELU in its tanh form: 0.5 x (1 + tanh u) is x times the logistic function of 2 u."""
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * u))


def embed(
    ids: Tensor,
    table: Tensor,
    scale: Tensor,
    signal: Tensor | None,
    weight: Tensor,
    eps: float,
    residual: Tensor,
    out: Tensor,
) -> None:
    """Rows of the embedding [V, H], scaled, into the residual stream, and their norm by `weight` [H] into `out`.

    ids int64 [rows]; `signal` [rows, H] is the self-conditioning's, added before a norm without weight; without it
    there is neither. residual fp32 [rows, H], out [rows, H] in the model's dtype.
    """
    width = table.shape[1]
    _embed_kernel[(ids.numel(),)](
        ids,
        table,
        scale,
        signal,
        weight,
        residual,
        out,
        width,
        eps,
        **_row_launch(width),
        **early(residual.device),
    )


def rms_norm_slots(x: Tensor, slots: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Norm of the rows of some slots: x [slots, n, H], slots int64 [m] -> out [m * n, H]."""
    n, width = x.shape[1:]
    _rms_norm_slots_kernel[(len(slots) * n,)](
        x, slots, weight, out, n, width, eps, **_row_launch(width), **early(x.device)
    )


def after_attention(
    attended: Tensor,
    residual: Tensor,
    *,
    post: Tensor,
    norms: tuple[Tensor, Tensor, Tensor],
    router_gain: float,
    eps: float,
    outs: tuple[Tensor, Tensor, Tensor],
    counts: Tensor,
) -> None:
    """Add the normed attention output to the residual; norm that for MLP, experts and router.

    `norms` are the three weights [H], the router's being multiplied by `router_gain`; `outs` [rows, H] in that
    order. counts int32 [experts] is set to zero for the router.
    """
    rows, width = attended.shape
    _after_attention_kernel[(rows,)](
        attended, residual, post, *norms, *outs, counts, width, eps, router_gain, len(counts),
        EXPERTS_BLOCK=triton.next_power_of_2(len(counts)), **_row_launch(width), **early(residual.device),
    )  # fmt: skip


def after_experts(
    mlp: Tensor,
    expert_out: Tensor,
    expert_weights: Tensor,
    residual: Tensor,
    *,
    norms: tuple[Tensor, Tensor, Tensor],
    scalar: Tensor,
    next_norm: Tensor,
    eps: float,
    out: Tensor,
) -> None:
    """Close a layer: residual + norm(norm(mlp) + norm(weighted experts)), times the layer's scalar.

    mlp [rows, H]; expert_out [rows, top_k, H] before its fp32 weights [rows, top_k]; `norms` are the weights after the
    MLP, after the experts, and after their sum; `out` is the residual normed by `next_norm`.
    """
    rows, width = mlp.shape
    _after_experts_kernel[(rows,)](
        mlp, expert_out, expert_weights, residual, *norms, scalar, next_norm, out, width, eps,
        TOP_K=expert_weights.shape[1], **_row_launch(width), **early(residual.device),
    )  # fmt: skip


def gelu_product(x: Tensor, out: Tensor) -> None:
    """gelu(gate) * up of x [rows, 2 * I], gate first -> out [rows, I]."""
    rows, width = out.shape
    block = min(1024, triton.next_power_of_2(width))
    _gelu_product_kernel[(rows, triton.cdiv(width, block))](
        x, out, width, BLOCK=block, num_warps=4, **early(x.device)
    )


def _row_launch(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": max(1, min(8, block // 512))}
