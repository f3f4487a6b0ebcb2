"""The model's forward pass as plain functions of one flat weight vector, with static shapes, made to be captured.

The same mathematics as transformers' DiffusionGemma (a test holds it to that), but every expert runs on every
token and the router's weights mask the result: one batched product instead of a loop. Knows tensors alone.
Prefixes are left-padded; padded positions get masked keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED = -30000.0  # finite in bf16; a row that is masked everywhere must not turn into NaN


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each weight lies in the flat vector, and what the forward pass must know of the configuration."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    layer_types: tuple[str, ...]
    hidden: int
    heads: int
    experts: int
    top_k: int
    window: int
    softcap: float
    eps: float

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each weight, in order."""
        return [torch.Size(s).numel() for s in self.shapes]


Weights = dict[str, Tensor]
Masks = dict[str, Tensor]


def flatten(model: Any) -> tuple[Layout, Tensor]:
    """The decoder's weights and both rows of layer scalars as one fp32 vector, with its layout."""
    text = model.config.text_config
    found = dict(model.model.decoder.named_parameters())
    both = (("decoder", model.model.decoder), ("encoder", model.model.encoder.language_model))
    for part, body in both:
        found[f"{part}_scalars"] = torch.cat([layer.layer_scalar for layer in body.layers])
    layout = Layout(
        names=tuple(found),
        shapes=tuple(tuple(w.shape) for w in found.values()),
        layer_types=tuple(text.layer_types),
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        experts=text.num_experts,
        top_k=text.top_k_experts,
        window=text.sliding_window,
        softcap=text.final_logit_softcapping,
        eps=text.rms_norm_eps,
    )
    return layout, torch.cat([w.detach().float().reshape(-1) for w in found.values()])


def unflatten_into(model: Any, layout: Layout, flat: Tensor) -> None:
    """Write the flat vector back into transformers' model."""
    weights = dict(zip(layout.names, flat.detach().float().split(layout.sizes), strict=True))
    with torch.no_grad():
        for name, weight in model.model.decoder.named_parameters():
            weight.copy_(weights[name].view_as(weight))
        for i, (dec, enc) in enumerate(
            zip(model.model.decoder.layers, model.model.encoder.language_model.layers, strict=True)
        ):
            dec.layer_scalar.copy_(weights["decoder_scalars"][i])
            enc.layer_scalar.copy_(weights["encoder_scalars"][i])
    model.tie_weights()


def views(layout: Layout, flat: Tensor, dtype: torch.dtype) -> Weights:
    """The weights by name: matrices in `dtype`, norms, scalars and routers in fp32 (their errors would be heard)."""
    full = flat.split(layout.sizes)
    low = full if dtype == torch.float32 else flat.to(dtype).split(layout.sizes)
    out = {}
    for name, shape, a, b in zip(layout.names, layout.shapes, full, low, strict=True):
        out[name] = (a if len(shape) == 1 or "router" in name else b).view(shape)
    return out


def rotations(model: Any, positions: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Cosine and sine of each layer type at `positions` [batch, length]: two [batch, length, 1, head_dim] in fp32."""
    rotary = model.model.decoder.rotary_emb
    out = {}
    for kind in ("sliding_attention", "full_attention"):
        freqs = (
            positions[..., None].float() * getattr(rotary, f"{kind}_inv_freq").to(positions.device).float()
        )
        angle = torch.cat((freqs, freqs), dim=-1)[:, :, None]
        out[kind] = (angle.cos(), angle.sin())
    return out


def encoder_masks(pads: Tensor, length: int, window: int) -> Masks:
    """Additive causal masks [batch, 1, length, length]; `pads` [batch] counts the padded positions on the left."""
    at = torch.arange(length, device=pads.device)
    gap = at[:, None] - at[None, :]
    real = at[None, None, :] >= pads[:, None, None]
    own = gap == 0  # a padded position sees itself, so that its row is not empty
    full = ((gap >= 0) & real) | own
    return {"full_attention": _additive(full), "sliding_attention": _additive(full & (gap < window))}


def decoder_masks(pads: Tensor, length: int, canvas: int, window: int) -> Masks:
    """Additive masks [batch, 1, canvas, length + canvas]: what the window holds of the prefix, and the canvas."""
    at = torch.arange(length + canvas, device=pads.device)
    real = (at[None, None, :] >= pads[:, None, None]).expand(-1, canvas, -1)
    held = at >= length - (window - 1)
    return {"full_attention": _additive(real), "sliding_attention": _additive(real & held)}


def _additive(allowed: Tensor) -> Tensor:
    return torch.where(allowed, 0.0, MASKED)[:, None]


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight, eps)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _attention(
    w: Weights, at: str, x: Tensor, layout: Layout, rotation: tuple[Tensor, Tensor], mask: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """One attention block on x [batch, length, hidden]; keys and values of `prefix` stand before its own."""
    dtype = x.dtype
    shape = (*x.shape[:2], -1, w[at + "q_norm.weight"].shape[0])
    q = _rotate(
        _norm(F.linear(x, w[at + "q_proj.weight"]).view(shape), w[at + "q_norm.weight"], layout.eps), rotation
    )
    raw = F.linear(x, w[at + "k_proj.weight"]).view(shape)
    k = _rotate(_norm(raw, w[at + "k_norm.weight"], layout.eps), rotation)
    v = F.linear(x, w[at + "v_proj.weight"]).view(shape) if at + "v_proj.weight" in w else raw
    v = _norm(v, None, layout.eps)
    q, k, v = (y.to(dtype).transpose(1, 2) for y in (q, k, v))
    own = (k, v)
    if prefix is not None:
        k, v = torch.cat((prefix[0], k), dim=2), torch.cat((prefix[1], v), dim=2)
    groups = layout.heads // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.to(dtype).expand(-1, layout.heads, -1, -1), scale=1.0
    )
    return F.linear(out.transpose(1, 2).reshape(*x.shape[:2], -1), w[at + "o_proj.weight"]), own


def _gated(x: Tensor, gate_up: Tensor, down: Tensor, scale: Tensor | None = None) -> Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    inner = F.gelu(gate, approximate="tanh") * up
    return F.linear(inner if scale is None else inner * scale, down)


def _experts(w: Weights, x: Tensor, normed: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """All experts on all tokens, masked by the router's choice of top_k; with them the switch balance loss."""
    routed = _norm(x, None, layout.eps) * w["router.scale"] * layout.hidden**-0.5
    probs = F.linear(routed, w["router.proj.weight"]).softmax(dim=-1)
    top, index = probs.topk(layout.top_k, dim=-1)
    chosen = torch.zeros_like(probs).scatter(-1, index, 1.0)
    share = probs * chosen / top.sum(dim=-1, keepdim=True) * w["router.per_expert_scale"]
    gate_up, down = w["experts.gate_up_proj"], w["experts.down_proj"]
    width = down.shape[-1]
    # All gates first, then all ups, so that one product serves every expert.
    stacked = (
        gate_up.view(layout.experts, 2, width, -1).transpose(0, 1).reshape(2 * layout.experts * width, -1)
    )
    joined = down.permute(1, 0, 2).reshape(layout.hidden, -1)
    scale = share.repeat_interleave(width, dim=-1).to(normed.dtype)
    balance = (
        layout.experts * (chosen.flatten(0, -2).mean(0) / layout.top_k * probs.flatten(0, -2).mean(0)).sum()
    )
    return _gated(normed, stacked, joined, scale), balance


def layer(
    w: Weights, layout: Layout, x: Tensor, scalar: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor,
    prefix: tuple[Tensor, Tensor] | None, dtype: torch.dtype,
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:  # fmt: skip
    """One layer on the residual stream x [batch, length, hidden] in fp32, `w` holding this layer's weights alone."""
    eps = layout.eps
    h = _norm(x, w["input_layernorm.weight"], eps).to(dtype)
    h, own = _attention(w, "self_attn.", h, layout, rotation, mask, prefix)
    x = x + _norm(h, w["post_attention_layernorm.weight"], eps)
    h = _norm(x, w["pre_feedforward_layernorm.weight"], eps).to(dtype)
    gate_up = torch.cat((w["mlp.gate_proj.weight"], w["mlp.up_proj.weight"]))
    shared = _gated(h, gate_up, w["mlp.down_proj.weight"])
    h = _norm(x, w["pre_feedforward_layernorm_2.weight"], eps).to(dtype)
    routed, balance = _experts(w, x, h, layout)
    both = _norm(shared, w["post_feedforward_layernorm_1.weight"], eps)
    both = both + _norm(routed, w["post_feedforward_layernorm_2.weight"], eps)
    x = (x + _norm(both, w["post_feedforward_layernorm.weight"], eps)) * scalar
    return x, own, balance


def _layers(
    w: Weights, layout: Layout, x: Tensor, scalars: Tensor, rotation: dict[str, tuple[Tensor, Tensor]], masks: Masks,
    prefix: list[tuple[Tensor, Tensor]] | None, dtype: torch.dtype,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:  # fmt: skip
    kept, balance = [], x.new_zeros(())
    for i, kind in enumerate(layout.layer_types):
        at = f"layers.{i}."
        mine = {name.removeprefix(at): weight for name, weight in w.items() if name.startswith(at)}
        past = None if prefix is None else prefix[i]
        x, own, loss = layer(mine, layout, x, scalars[i], rotation[kind], masks[kind], past, dtype)
        kept.append(own)
        balance = balance + loss
    return _norm(x, w["norm.weight"], layout.eps), kept, balance / len(layout.layer_types)


def encode(
    w: Weights, layout: Layout, ids: Tensor, rotation: dict[str, tuple[Tensor, Tensor]], masks: Masks, *,
    dtype: torch.dtype,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:  # fmt: skip
    """Causal pass over prefixes [batch, length]: final states in fp32, keys and values of each layer, balance loss."""
    x = F.embedding(ids, w["embed_tokens.weight"]).float() * layout.hidden**0.5
    return _layers(w, layout, x, w["encoder_scalars"], rotation, masks, None, dtype)


def decode(
    w: Weights, layout: Layout, ids: Tensor, soft: Tensor | None, rotation: dict[str, tuple[Tensor, Tensor]],
    masks: Masks, prefix: list[tuple[Tensor, Tensor]], *, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Bidirectional pass over canvases [batch, canvas]: capped logits [batch, canvas, vocabulary] and balance loss.

    `soft` is the self-conditioning signal [batch, canvas, hidden] or None on a first step.
    """
    x = F.embedding(ids, w["embed_tokens.weight"]).float() * layout.hidden**0.5
    at = "self_conditioning."
    if soft is None:
        soft = torch.zeros_like(x)
    normed = _norm(soft, w[at + "pre_norm.weight"], layout.eps).to(dtype)
    gate_up = torch.cat((w[at + "gate_proj.weight"], w[at + "up_proj.weight"]))
    x = _norm(x + _gated(normed, gate_up, w[at + "down_proj.weight"]), None, layout.eps)
    x, _, balance = _layers(w, layout, x, w["decoder_scalars"], rotation, masks, prefix, dtype)
    return logits_of(w, layout, x, dtype=dtype), balance


def logits_of(w: Weights, layout: Layout, hidden: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Final states to capped logits in fp32."""
    raw = F.linear(hidden.to(dtype), w["embed_tokens.weight"]).float()
    return layout.softcap * torch.tanh(raw / layout.softcap)


def soft_embeddings(
    w: Weights, layout: Layout, logits: Tensor, temperature: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """What self-conditioning feeds back: softmax(logits / temperature) @ E * embed_scale, [batch, canvas, hidden]."""
    probs = (logits / temperature).softmax(dim=-1).to(dtype)
    return (probs @ w["embed_tokens.weight"]).float() * layout.hidden**0.5
