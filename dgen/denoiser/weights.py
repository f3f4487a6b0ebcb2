"""transformers' modules -> the tensors that the fused forward reads, without a second copy of any weight.

Products that share an input are one matrix here: their parameters become views of it, so that transformers' own
forward still runs on the same memory. Says by name what the fused forward can't do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dgen.denoiser.kernels.softmax import NO_WINDOW

_SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a program of the bf16 kernels may take: what Hopper and later cards have."""
SOFTCAPS = (2.0**-10, 2.0**10)
"""Softcaps that can be left to a sampler's kernels: the powers of others would not fit fp32."""
_STATIC_ROPES = ("default", "linear", "llama3", "proportional", "yarn")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [out, in] as in nn.Linear, H the hidden size, I a middle one, D the head's.

    qkv [(q heads + kv heads * (1 or 2)) * D, H], o [H, q heads * D], gate_up [2 * I, H] and down [H, I] of the shared
    MLP, router [experts, H], experts_gate_up [experts, 2 * I, H], experts_down [experts, H, I]; norms are weights [H]
    or [D], `scalar` [1]; `router_gain` multiplies the router's norm; `rope` names the layer's kind of positions.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    q_norm: Tensor
    k_norm: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor
    router_norm: Tensor
    router_gain: float
    expert_gain: Tensor
    experts_gate_up: Tensor
    experts_down: Tensor
    input_norm: Tensor
    after_attention_norm: Tensor
    before_mlp_norm: Tensor
    before_experts_norm: Tensor
    after_mlp_norm: Tensor
    after_experts_norm: Tensor
    closing_norm: Tensor
    scalar: Tensor
    q_heads: int
    kv_heads: int
    head_dim: int
    v_from_k: bool
    window: int
    rope: str
    scale: float
    top_k: int


@dataclass(frozen=True, slots=True)
class StackWeights:
    """The layers of encoder or decoder with what stands before and after them.

    embedding [V, H] and its scale []; rope: by kind of positions, inverse frequencies fp32 [D / 2] and the factor of
    cos and sin.
    """

    layers: tuple[LayerWeights, ...]
    embedding: Tensor
    embed_scale: Tensor
    final_norm: Tensor
    rope: dict[str, tuple[Tensor, float]]
    eps: float


@dataclass(frozen=True, slots=True)
class SignalWeights:
    """The self-conditioning MLP: norm [H], gate_up [2 * I, H], down [H, I]."""

    norm: Tensor
    gate_up: Tensor
    down: Tensor


def unsupported(model: Any, *, device: torch.device | None = None) -> str | None:
    """Why the fused forward can't run this DiffusionGemmaForBlockDiffusion; None where it can.

    Args:
        device: where it is to run, if not where it is.
    """
    device = device or model.device
    text = model.config.get_text_config()
    if text.hidden_activation != "gelu_pytorch_tanh":
        return f"its activation is {text.hidden_activation}"
    if text.use_bidirectional_attention == "all":
        return "its encoder is not causal"
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"its dtype is {str(model.dtype).removeprefix('torch.')}"
    if not SOFTCAPS[0] <= text.final_logit_softcapping <= SOFTCAPS[1]:
        return f"its softcap is {text.final_logit_softcapping:g}"
    for kind in set(text.layer_types):
        rope = model.model.decoder.rotary_emb.rope_type[kind]
        if rope not in _STATIC_ROPES:
            return f"its rotary positions are of the type {rope}"
    if device.type == "cuda" and model.dtype == torch.bfloat16:
        properties = torch.cuda.get_device_properties(device)
        has = getattr(properties, "shared_memory_per_block_optin", _SHARED_MEMORY)
        if has < _SHARED_MEMORY:
            return f"a program has {has // 1024} KB of shared memory on this card, and needs up to 227"
    for layer in model.model.decoder.layers:
        for module in layer.modules():
            if isinstance(module, nn.Linear) and type(module) is not nn.Linear:
                return f"its weights are quantized ({type(module).__name__})"
        if any(weight.dtype != model.dtype for weight in layer.parameters()):
            return "its weights are of several dtypes"
        if layer.self_attn.head_dim % 2:
            return f"its heads have the odd size {layer.self_attn.head_dim}"
        kind, rotary = layer.self_attn.layer_type, model.model.decoder.rotary_emb
        if 2 * len(getattr(rotary, f"{kind}_inv_freq")) != layer.self_attn.head_dim:
            return "its rotary positions turn only a part of a head"
    return None


@torch.no_grad()
def stack_weights(stack: Any) -> StackWeights:
    """The weights of DiffusionGemmaEncoderTextModel or DiffusionGemmaDecoderModel."""
    rotary = stack.rotary_emb
    kinds = {layer.self_attn.layer_type for layer in stack.layers}
    return StackWeights(
        layers=tuple(_layer_weights(layer) for layer in stack.layers),
        embedding=stack.embed_tokens.weight.data,
        embed_scale=stack.embed_tokens.embed_scale,
        final_norm=stack.norm.weight.data,
        rope={
            kind: (
                getattr(rotary, f"{kind}_inv_freq").float(),
                float(getattr(rotary, f"{kind}_attention_scaling")),
            )
            for kind in kinds
        },
        eps=stack.norm.eps,
    )


@torch.no_grad()
def signal_weights(module: Any) -> SignalWeights:
    """The weights of DiffusionGemmaSelfConditioning."""
    gate_up = _joined([module.gate_proj.weight, module.up_proj.weight])
    return SignalWeights(module.pre_norm.weight.data, gate_up, module.down_proj.weight.data)


def _layer_weights(layer: Any) -> LayerWeights:
    attention, mlp, router, experts = layer.self_attn, layer.mlp, layer.router, layer.experts
    projections = [p for p in (attention.q_proj, attention.k_proj, attention.v_proj) if p is not None]
    head_dim = attention.head_dim
    return LayerWeights(
        qkv=_joined([p.weight for p in projections]),
        qkv_bias=None if attention.q_proj.bias is None else torch.cat([p.bias.data for p in projections]),
        o=attention.o_proj.weight.data,
        o_bias=None if attention.o_proj.bias is None else attention.o_proj.bias.data,
        q_norm=attention.q_norm.weight.data,
        k_norm=attention.k_norm.weight.data,
        gate_up=_joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight.data,
        router=router.proj.weight.data,
        router_norm=router.scale.data,
        router_gain=float(router.scalar_root_size),
        expert_gain=router.per_expert_scale.data,
        experts_gate_up=experts.gate_up_proj.data,
        experts_down=experts.down_proj.data,
        input_norm=layer.input_layernorm.weight.data,
        after_attention_norm=layer.post_attention_layernorm.weight.data,
        before_mlp_norm=layer.pre_feedforward_layernorm.weight.data,
        before_experts_norm=layer.pre_feedforward_layernorm_2.weight.data,
        after_mlp_norm=layer.post_feedforward_layernorm_1.weight.data,
        after_experts_norm=layer.post_feedforward_layernorm_2.weight.data,
        closing_norm=layer.post_feedforward_layernorm.weight.data,
        scalar=layer.layer_scalar.data,
        q_heads=attention.q_proj.out_features // head_dim,
        kv_heads=attention.k_proj.out_features // head_dim,
        head_dim=head_dim,
        v_from_k=attention.v_proj is None,
        window=attention.sliding_window if attention.is_sliding else NO_WINDOW,
        rope=attention.layer_type,
        scale=float(attention.scaling),
        top_k=router.config.top_k_experts,
    )


def _joined(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Matrices [n, in] as one [sum of n, in], of which they become views; those that are already stay as they are."""
    first = parameters[0].data
    ends = [p.data.data_ptr() + p.data.nbytes for p in parameters]
    shape = (sum(len(p) for p in parameters), first.shape[1])
    if all(p.data.data_ptr() == end for p, end in zip(parameters[1:], ends, strict=False)) and (
        first.untyped_storage().nbytes() >= (first.storage_offset() + shape[0] * shape[1]) * first.itemsize
    ):
        return first.as_strided(shape, (shape[1], 1))
    joined = torch.cat([p.data for p in parameters])
    for parameter, part in zip(parameters, joined.split([len(p) for p in parameters]), strict=True):
        parameter.data = part
    return joined
