"""transformers' own forward, one slot at a time, on any device: the golden path.

Every call below is the one that transformers' `generate` makes with a dynamic cache, so its logits are bit-equal;
slots never share a call, so a request's logits don't depend on its batch-mates. The single intrusion is a
pre-hook on the self-conditioning module: it hands in the stored soft embedding [canvas, hidden], where
`generate` would keep logits [canvas, vocab] and could not give a pinned row a zero signal.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from dgen.denoiser.base import Tell

PREFILL_CHUNK = 4096
"""Prompt tokens per causal pass: bounds the attention scores of a long prompt."""


class ReferenceDenoiser:
    """A `Denoiser` over a loaded DiffusionGemmaForBlockDiffusion.

    Args:
        model: transformers' model in eval mode; its weights are used in place.
        num_slots: how many requests may hold KV at once.
        max_context: most positions of a request; None for as many as the model has.
    """

    name = "reference"
    softcap: float | None = None
    probs_dtype: torch.dtype | None = None
    capturable = False

    def __init__(self, model: Any, *, num_slots: int = 1, max_context: int | None = None) -> None:
        self.model = model
        self.device = model.device
        text_config = model.config.get_text_config()
        self.vocab_size = text_config.vocab_size
        self.canvas_len = model.config.canvas_length
        self.num_slots = num_slots
        most = text_config.max_position_embeddings
        self.max_context = most if max_context is None else min(most, max_context)
        self._text_config = text_config
        self._caches: list[Any] = [None] * num_slots
        self._lengths = [0] * num_slots
        self._soft: list[torch.Tensor | None] = [None] * num_slots  # [1, canvas, hidden] each
        self._incoming: torch.Tensor | None = None
        # transformers 5.17 calls the argument past_key_values, later versions cache.
        decoder_forward = inspect.signature(type(model.model.decoder).forward)
        self._cache_arg = "cache" if "cache" in decoder_forward.parameters else "past_key_values"
        model.model.decoder.self_conditioning.register_forward_pre_hook(self._hand_in_soft_embedding)

    def _hand_in_soft_embedding(self, _module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._incoming is None:
            return None
        inputs_embeds, _ = args
        return inputs_embeds, self._incoming

    def prepare(self, tell: Tell | None = None) -> None:
        """See `Denoiser.prepare`; there is nothing to make ready."""

    @torch.inference_mode()
    def prefill(self, slot: int, ids: torch.Tensor) -> None:
        """See `Denoiser.prefill`; ids [n], n >= 1."""
        self.release(slot)
        self.extend(slot, ids)

    @torch.inference_mode()
    def extend(self, slot: int, ids: torch.Tensor) -> None:
        """See `Denoiser.extend`; ids [n], n >= 1."""
        from transformers import DynamicCache

        if self._caches[slot] is None:
            self._caches[slot] = DynamicCache(config=self._text_config)
        for chunk in ids.split(PREFILL_CHUNK):
            self._encode(slot, chunk)

    def copy(self, source: int, target: int) -> None:
        """See `Denoiser.copy`; costs no memory until either slot goes on."""
        cache = copy.copy(self._caches[source])
        # A dynamic layer replaces its tensors and never writes into them, so both slots may look at the same ones.
        cache.layers = [copy.copy(layer) for layer in cache.layers]
        self._caches[target], self._lengths[target] = cache, self._lengths[source]

    @torch.inference_mode()
    def commit(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """See `Denoiser.commit`."""
        for slot, canvas in zip(slots.tolist(), ids, strict=True):
            self._soft[slot] = None
            self._encode(slot, canvas)

    def release(self, slot: int) -> None:
        """See `Denoiser.release`."""
        self._caches[slot] = None
        self._soft[slot] = None
        self._lengths[slot] = 0

    def _encode(self, slot: int, ids: torch.Tensor) -> None:
        encoder = self.model.model.encoder
        start, end = self._lengths[slot], self._lengths[slot] + ids.shape[0]
        positions = torch.arange(start, end, dtype=torch.int32, device=self.device)[None]
        cache = {self._cache_arg: self._caches[slot]}
        masks = encoder.create_masks_for_generate(
            config=self.model.config,
            inputs_embeds=torch.empty((1, ids.shape[0], 0), dtype=self.model.dtype, device=self.device),
            attention_mask=torch.ones((1, end), dtype=torch.bool, device=self.device),
            position_ids=positions,
            **cache,
        )
        encoder(input_ids=ids[None], attention_mask=masks, position_ids=positions, **cache)
        self._lengths[slot] = end

    @torch.inference_mode()
    def denoise(self, slots: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        """See `Denoiser.denoise`; fp32 logits, softcapped."""
        rows = [self._denoise_one(slot, ids) for slot, ids in zip(slots.tolist(), canvas, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _denoise_one(self, slot: int, ids: torch.Tensor) -> torch.Tensor:
        start = self._lengths[slot]
        positions = torch.arange(start, start + ids.shape[0], dtype=torch.int32, device=self.device)[None]
        self._incoming = self._soft[slot]
        try:
            output = self.model(
                decoder_input_ids=ids[None],
                decoder_position_ids=positions,
                # No padding, so no mask: a dynamic sliding layer holds just what its window may see.
                decoder_attention_mask={"full_attention": None, "sliding_attention": None},
                **{self._cache_arg: self._caches[slot]},
            )
        finally:
            self._incoming = None
        return output.logits[0]

    @torch.inference_mode()
    def condition(
        self,
        slots: torch.Tensor,
        logits: torch.Tensor,
        temps: torch.Tensor,
        probs: torch.Tensor | None,
        pinned: torch.Tensor,
    ) -> None:
        """See `Denoiser.condition`; logits/T is rounded to the embedding's dtype first, as in transformers."""
        del probs  # the reference derives its own, to the bit
        embedding = self.model.model.decoder.embed_tokens
        weight = embedding.weight
        per_slot = logits.view(len(slots), self.canvas_len, -1)
        # Near T = 0 the division would overflow: there the clamped T divides differences from the row's maximum.
        for slot, row_logits, temp, row_pinned in zip(slots.tolist(), per_slot, temps, pinned, strict=True):
            if temp >= 1e-10:
                scaled = row_logits / temp
            else:
                scaled = (row_logits - row_logits.amax(dim=-1, keepdim=True)) / 1e-10
            scaled = scaled.to(weight.dtype)[None]
            soft = torch.matmul(scaled.softmax(dim=-1, dtype=torch.float32).to(weight.dtype), weight)
            soft = soft * embedding.embed_scale.to(weight.dtype)
            self._soft[slot] = soft.masked_fill(row_pinned[None, :, None], 0.0)
