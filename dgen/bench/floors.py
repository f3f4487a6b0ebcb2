"""What a step, a commit and a prefill can't avoid, from the model's own parameters: bytes moved, operations done.

Weights are read once, of the experts those that tokens are routed to, and the prefix's keys and values once for each
request. Operations are those of the matrix products and of attention. Activations count nothing. A causal pass
ends with the last layer's keys and values: nothing reads what would come after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dgen.bench.report import Work

_LAST_NEEDS = ("input_layernorm.", "self_attn.k_", "self_attn.v_")


@dataclass(frozen=True, slots=True)
class Size:
    """Of some weights: bytes, and entries of those that are matrices."""

    bytes: int = 0
    entries: int = 0

    def __add__(self, weight: Any) -> Size:
        return Size(self.bytes + weight.nbytes, self.entries + (weight.numel() if weight.ndim > 1 else 0))


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention of one layer; `window` is None where it sees everything."""

    heads: int
    key_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model in numbers.

    Attributes:
        dense: of the decoder without experts, self-conditioning included; `causal` is what a causal pass has of it.
        experts: of all experts of all layers.
        head: of the output matrix.
    """

    dense: Size
    causal: Size
    experts: Size
    head: Size
    layers: tuple[Layer, ...]
    num_experts: int
    top_k: int
    vocab: int
    canvas: int
    itemsize: int

    @classmethod
    def of(cls, model: Any) -> Sizes:
        """Those of a DiffusionGemmaForBlockDiffusion."""
        decoder, text = model.model.decoder, model.config.get_text_config()
        last = f"layers.{len(decoder.layers) - 1}."
        dense, causal, experts = Size(), Size(), Size()
        for name, weight in decoder.named_parameters():
            if name.startswith("embed_tokens."):
                continue  # a few rows of it are read
            if ".experts." in name:
                experts += weight
                continue
            dense += weight
            needed = name.removeprefix(last).startswith(_LAST_NEEDS) if name.startswith(last) else True
            if needed and name.startswith("layers."):
                causal += weight
        head, heads = model.lm_head.weight, text.num_attention_heads
        attentions = [layer.self_attn for layer in decoder.layers]
        layers = tuple(
            Layer(heads, heads // of.num_key_value_groups, of.head_dim, of.sliding_window)
            for of in attentions
        )
        return cls(
            dense, causal, experts, Size() + head, layers, text.num_experts, text.top_k_experts,
            text.vocab_size, model.config.canvas_length, head.itemsize,
        )  # fmt: skip

    def step(self, *, batch: int, context: int, hit: float | None = None) -> dict[str, Work]:
        """The parts of a denoising step of `batch` canvases behind prefixes of `context` tokens.

        Args:
            hit: experts of a layer that any token is routed to; None: as many as chance would have it.
        """
        rows = batch * self.canvas
        logits = rows * self.vocab * self.itemsize
        products = 2.0 * rows * self.head.entries
        share = self._hit(rows) if hit is None else hit / self.num_experts
        attention = 0.0
        for layer in self.layers:
            seen = self._kept(layer, context) + self.canvas
            attention += 4.0 * rows * layer.heads * layer.head_dim * seen
        return {
            "decoder": Work(
                "decoder: weights and prefix read once",
                self.dense.bytes + int(self.experts.bytes * share) + batch * self._prefix(context),
                2.0 * rows * (self.dense.entries + self._routed) + attention,
            ),
            "head": Work("head: its matrix read, logits written", self.head.bytes + logits, products),
            "sampler": Work("sampler: logits read once", logits),
            "condition": Work("self-conditioning: the matrix again", self.head.bytes, products),
        }

    def causal_pass(self, *, batch: int, tokens: int, context: int) -> Work:
        """A causal pass over `tokens` tokens of each of `batch` requests behind prefixes of `context` tokens."""
        rows, before = batch * tokens, self.layers[:-1]
        share = len(before) / len(self.layers)
        attention = 0.0
        for layer in before:
            limit = layer.window or context + tokens
            # The first tokens see all that came before them and themselves, the others what the window holds.
            free = max(0, min(tokens, limit - context))
            seen = free * context + free * (free + 1) // 2 + (tokens - free) * limit
            attention += 4.0 * batch * layer.heads * layer.head_dim * seen
        return Work(
            "weights and prefix read once",
            self.causal.bytes
            + int(self.experts.bytes * share * self._hit(rows))
            + batch * self._prefix(context, causal=True),
            2.0 * rows * (self.causal.entries + share * self._routed) + attention,
        )

    def _hit(self, rows: int) -> float:
        """The share of a layer's experts that `rows` tokens hit by chance."""
        return 1.0 - (1.0 - self.top_k / self.num_experts) ** rows

    @property
    def _routed(self) -> float:
        """Entries of the experts that a token goes through, over all layers."""
        return self.experts.entries * self.top_k / self.num_experts

    def _kept(self, layer: Layer, context: int) -> int:
        return context if layer.window is None else min(context, layer.window - 1)

    def _prefix(self, context: int, *, causal: bool = False) -> int:
        """Bytes of a prefix's keys and values; a causal pass reads none of the last layer's."""
        return sum(
            self._kept(layer, context) * 2 * layer.key_heads * layer.head_dim * self.itemsize
            for layer in (self.layers[:-1] if causal else self.layers)
        )
