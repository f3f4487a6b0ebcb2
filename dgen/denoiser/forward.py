"""One pass of the layers, causal or bidirectional, over packed weights: our kernels between cuBLAS products.

Every intermediate lies in a workspace that is allocated once, so that a pass allocates next to nothing and a CUDA
graph can hold it. The shared MLP runs on a stream of its own beside the router and the experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgen.denoiser.cache import SlotCache
from dgen.denoiser.kernels.attention import attend, write_cache
from dgen.denoiser.kernels.experts import down, gate_up
from dgen.denoiser.kernels.norms import after_attention, after_experts, embed, gelu_product, rms_norm_slots
from dgen.denoiser.kernels.rope import norm_and_rotate
from dgen.denoiser.kernels.router import Routing, route
from dgen.denoiser.kernels.wide_attention import WideTiles, attend_wide
from dgen.denoiser.tiles import attention_tiles, expert_tiles
from dgen.denoiser.weights import LayerWeights, SignalWeights, StackWeights
from dgen.denoiser.workspace import Workspace

Rotations = dict[str, tuple[Tensor, Tensor]]


class Forward:
    """Passes of one stack of layers (encoder or decoder) over a cache of slots."""

    def __init__(self, weights: StackWeights, workspace: Workspace, cache: SlotCache) -> None:
        self._weights, self._workspace, self._cache = weights, workspace, cache

    def encode(self, slots: Tensor, ids: Tensor, counts: Tensor) -> None:
        """Causal pass that appends the KV of the first counts of ids [m, n] to the slots [m]; all int64, counts [m].

        The lengths move on by as much; what stands behind the counts is padding, which reaches nothing.
        """
        n = ids.shape[1]
        x = self._embed(ids, None)
        rotations = self._rotations(slots, n)
        *layers, last = range(len(self._weights.layers))
        for index in layers:
            x = self._layer(index, x, slots, n, rotations, counts)
        # Nothing reads the encoder's output: of its last layer only keys and values are wanted.
        qkv = self._project(self._weights.layers[last], x, rotations, keys_only=True)
        self._write(last, qkv, slots, n, counts)
        self._cache.lengths.index_add_(0, slots, counts)
        self._cache.lengths[self._cache.num_slots].zero_()

    def decode(self, slots: Tensor, ids: Tensor, signal: SignalWeights, soft: Tensor) -> Tensor:
        """Bidirectional pass over canvases [m, n] -> the last norm's output [m * n, H].

        soft: the slots' self-conditioning [slots + 1, n, H], zero where there is none.
        """
        n = ids.shape[1]
        x = self._embed(ids, self._signal(signal, slots, soft))
        rotations = self._rotations(slots, n)
        for index in range(len(self._weights.layers)):
            x = self._layer(index, x, slots, n, rotations, None)
        return x

    def _signal(self, signal: SignalWeights, slots: Tensor, soft: Tensor) -> Tensor:
        work, rows = self._workspace, len(slots) * soft.shape[1]
        normed = work.of("normed", rows, soft.shape[2])
        rms_norm_slots(soft, slots, signal.norm, self._weights.eps, normed)
        return self._mlp(normed, signal.gate_up, signal.down)

    def _embed(self, ids: Tensor, signal: Tensor | None) -> Tensor:
        weights, work = self._weights, self._workspace
        rows, width = ids.numel(), weights.embedding.shape[1]
        x = work.of("normed", rows, width)
        embed(
            ids.reshape(-1),
            weights.embedding,
            weights.embed_scale,
            signal,
            weights.layers[0].input_norm,
            weights.eps,
            work.of("residual", rows, width),
            x,
        )
        return x

    def _rotations(self, slots: Tensor, n: int) -> Rotations:
        positions = self._cache.lengths[slots][:, None] + torch.arange(n, device=slots.device)
        positions = positions.reshape(-1, 1).float()
        found = {}
        for kind, (frequencies, factor) in self._weights.rope.items():
            angles = positions * frequencies
            found[kind] = (angles.cos() * factor, angles.sin() * factor)
        return found

    def _layer(
        self, index: int, x: Tensor, slots: Tensor, n: int, rotations: Rotations, counts: Tensor | None
    ) -> Tensor:
        """With counts causal, and so many rows' keys and values are kept."""
        layer, work = self._weights.layers[index], self._workspace
        rows, width = x.shape
        qkv = self._project(layer, x, rotations)
        attended = work.of("attended", rows, layer.q_heads * layer.head_dim)
        self._attend(index, qkv, slots, attended, n, counts is not None)
        if counts is not None:
            self._write(index, qkv, slots, n, counts)
        projected = work.of("projected", rows, width)
        _product(attended, layer.o, layer.o_bias, projected)
        return self._feed_forward(index, projected)

    def _attend(self, index: int, qkv: Tensor, slots: Tensor, out: Tensor, n: int, causal: bool) -> None:
        layer, work, cache = self._weights.layers[index], self._workspace, self._cache
        tiles = attention_tiles(layer, rows=len(qkv), n=n)
        numbers: dict[str, Any] = {
            "n": n,
            "q_heads": layer.q_heads,
            "window": layer.window,
            "causal": causal,
            "scale": layer.scale,
        }
        if isinstance(tiles, WideTiles):
            attend_wide(
                qkv,
                cache.layers[index],
                slots,
                cache.lengths,
                out,
                tiles=tiles,
                weights=work.exponentials,
                tops=work.tops,
                moves=work.moves,
                parts=work.parts,
                **numbers,
            )
        else:
            attend(
                qkv, cache.layers[index], slots, cache.lengths, out, tiles=tiles, parts=work.parts, **numbers
            )

    def _project(
        self, layer: LayerWeights, x: Tensor, rotations: Rotations, *, keys_only: bool = False
    ) -> Tensor:
        rows, size = x.shape[0], layer.head_dim
        heads = layer.q_heads + 2 * layer.kv_heads
        flat = self._workspace.of("qkv", rows, heads * size)
        begin = layer.q_heads * size if keys_only else 0
        bias = None if layer.qkv_bias is None else layer.qkv_bias[begin:]
        _product(x, layer.qkv[begin:], bias, flat[:, begin : len(layer.qkv)])
        qkv = flat.view(rows, heads, size)
        norm_and_rotate(
            qkv,
            layer.q_norm,
            layer.k_norm,
            *rotations[layer.rope],
            self._weights.eps,
            heads=(layer.q_heads, layer.kv_heads),
            v_from_k=layer.v_from_k,
            keys_only=keys_only,
        )
        return qkv

    def _write(self, index: int, qkv: Tensor, slots: Tensor, n: int, counts: Tensor) -> None:
        cache, heads = self._cache, self._weights.layers[index].q_heads
        write_cache(qkv, cache.layers[index], slots, cache.lengths, counts, n=n, q_heads=heads)

    def _feed_forward(self, index: int, projected: Tensor) -> Tensor:
        layers, work, eps = self._weights.layers, self._workspace, self._weights.eps
        layer = layers[index]
        rows, width = projected.shape
        residual = work.of("residual", rows, width)
        for_mlp, for_experts, for_router = (
            work.of(name, rows, width) for name in ("for_mlp", "for_experts", "for_router")
        )
        routing = Routing(work.counts, work.assignments)
        after_attention(
            projected,
            residual,
            post=layer.after_attention_norm,
            norms=(layer.before_mlp_norm, layer.before_experts_norm, layer.router_norm),
            router_gain=layer.router_gain,
            eps=eps,
            outs=(for_mlp, for_experts, for_router),
            counts=work.counts,
        )
        with work.side.beside():
            mlp = self._mlp(for_mlp, layer.gate_up, layer.down)
        shares = work.of("shares", rows, layer.top_k)
        route(for_router, layer.router, layer.expert_gain, work.scores, shares, routing)
        first, second = expert_tiles(
            tokens=rows, top_k=layer.top_k, experts=len(layer.router), dtype=projected.dtype
        )
        middle = work.of("expert_middle", rows * layer.top_k, layer.experts_down.shape[2])
        gate_up(for_experts, layer.experts_gate_up, middle, routing, top_k=layer.top_k, tiles=first)
        expert_out = work.of("expert_out", rows * layer.top_k, width)
        down(middle, layer.experts_down, expert_out, routing, tiles=second)
        work.side.join()
        x = work.of("normed", rows, width)
        after_experts(
            mlp,
            expert_out,
            shares,
            residual,
            norms=(layer.after_mlp_norm, layer.after_experts_norm, layer.closing_norm),
            scalar=layer.scalar,
            next_norm=layers[index + 1].input_norm if index + 1 < len(layers) else self._weights.final_norm,
            eps=eps,
            out=x,
        )
        return x

    def _mlp(self, x: Tensor, gate_up_weight: Tensor, down_weight: Tensor) -> Tensor:
        work, rows = self._workspace, x.shape[0]
        middle = work.of("mlp_middle", rows, len(gate_up_weight))
        _product(x, gate_up_weight, None, middle)
        product = work.of("mlp_product", rows, down_weight.shape[1])
        gelu_product(middle, product)
        out = work.of("mlp_out", rows, len(down_weight))
        _product(product, down_weight, None, out)
        return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """x weight^T (+ bias) -> out, which may be some columns of a wider buffer."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)
