"""The CUDA path: our own forward over transformers' weights, a KV cache of slots, many slots in one pass.

What it computes is held against the reference denoiser; what it can't run it refuses by name. Passes read nothing
back, so that steps can be captured as CUDA graphs by whoever runs them; causal passes are captured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgen.denoiser.base import Tell
from dgen.denoiser.cache import SlotCache
from dgen.denoiser.capture import Replay, capture
from dgen.denoiser.forward import Forward
from dgen.denoiser.need import PREFILL_CHUNK, Need, fused_need, most_rows
from dgen.denoiser.tiles import SPLIT_ROWS
from dgen.denoiser.weights import signal_weights, stack_weights, unsupported
from dgen.denoiser.workspace import Workspace
from dgen.errors import SettingsError
from dgen.jit import compiling_only, has_triton, is_interpreted

CAPTURED_ROWS = 1024
"""Rows of the largest prefill that is captured: from here on a pass takes longer than it takes to launch."""


class FusedDenoiser:
    """A `Denoiser` over a loaded DiffusionGemmaForBlockDiffusion, on CUDA (or in Triton's interpreter).

    Args:
        model: transformers' model in eval mode; matrices with a common input become views of one (see `weights`).
        num_slots: how many requests may hold KV at once.
        max_context: positions of a slot; None for as many as the model has and the memory holds.
        least_context: what None must come to at least; by default two canvases.
        free: bytes that may be allocated; None asks the device.
        graphs: whether causal passes are captured as CUDA graphs.

    Raises:
        SettingsError: the model can't be run this way, or the memory can't hold that context.
    """

    name = "fused"
    capturable = True

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int = 1,
        max_context: int | None = None,
        least_context: int | None = None,
        free: int | None = None,
        graphs: bool = True,
    ) -> None:
        self.device = model.device
        require_fused(model)
        text = model.config.get_text_config()
        self.vocab_size = text.vocab_size
        self.canvas_len = model.config.canvas_length
        self.num_slots = num_slots
        self.softcap: float | None = float(text.final_logit_softcapping)
        self.probs_dtype: torch.dtype | None = model.dtype
        decoder = model.model.decoder
        self._weights = stack_weights(decoder)
        self._encoder_weights = stack_weights(model.model.encoder.language_model)
        self._signal_weights = signal_weights(decoder.self_conditioning)
        self._head = model.lm_head.weight.data
        self.max_context = self._fit(
            text.max_position_embeddings, max_context, least_context or 2 * self.canvas_len, free
        )
        layers, rows = self._weights.layers, most_rows(num_slots, self.canvas_len)
        workspace = Workspace(
            layers, self._signal_weights, max_rows=rows, max_context=self.max_context, device=self.device
        )
        self._cache = SlotCache(layers, num_slots=num_slots, max_context=self.max_context, device=self.device)
        self._decoder = Forward(self._weights, workspace, self._cache)
        self._encoder = Forward(self._encoder_weights, workspace, self._cache)
        hidden, dtype = self._head.shape[1], model.dtype
        self._soft = torch.zeros(num_slots + 1, self.canvas_len, hidden, dtype=dtype, device=self.device)
        self._logits = torch.empty(
            num_slots * self.canvas_len, self.vocab_size, dtype=dtype, device=self.device
        )
        self._graphs = graphs and self.device.type == "cuda"
        self._met: set[int] = set()  # sizes of prompts' passes
        self._causal: dict[tuple[int, int], Replay] = {}
        self._pool: Any = None
        self._refused: dict[tuple[int, int], str] = {}

    def _fit(self, most: int, wanted: int | None, least: int, free: int | None) -> int:
        """The context that the memory holds, at most `most`; errors as in the class."""
        if free is None and self.device.type != "cuda":
            return min(most, wanted or most)
        if free is None:
            torch.cuda.empty_cache()  # what joining the weights left behind can be had again
            free = torch.cuda.mem_get_info(self.device)[0]
        positions = min(most, wanted) if wanted is not None else most
        need = self._need()
        fits = need.longest(positions, free)
        if fits >= positions or (wanted is None and fits >= least):
            return fits
        raise need.refusal(positions, free, canvas_len=self.canvas_len)

    def _need(self) -> Need:
        return fused_need(
            self._weights.layers,
            self._signal_weights,
            self._head,
            num_slots=self.num_slots,
            canvas_len=self.canvas_len,
        )

    def prepare(self, tell: Tell | None = None) -> None:
        """See `Denoiser.prepare`: the kernels of causal passes, and one canvas' pass as a graph."""
        if self.device.type != "cuda":
            return
        started = time.perf_counter()
        spare = torch.tensor([self.num_slots], device=self.device)
        with torch.inference_mode(), compiling_only():
            for n in (self.canvas_len, SPLIT_ROWS, CAPTURED_ROWS, PREFILL_CHUNK):
                self._encoder.encode(
                    spare, torch.zeros(1, n, dtype=torch.int64, device=self.device), torch.ones_like(spare)
                )
        if tell is not None:
            tell(f"prefill: compiled in {time.perf_counter() - started:.1f} s")
        if self._graphs:
            started = time.perf_counter()
            captured = self._graph((1, self.canvas_len)) is not None
            if tell is not None:
                took = f"captured in {time.perf_counter() - started:.1f} s"
                tell(f"commits of 1: {took if captured else self._refused[1, self.canvas_len]}")

    @torch.inference_mode()
    def prefill(self, slot: int, ids: Tensor) -> None:
        """See `Denoiser.prefill`; ids [n], n >= 1."""
        self.release(slot)
        self.extend(slot, ids)

    @torch.inference_mode()
    def extend(self, slot: int, ids: Tensor) -> None:
        """See `Denoiser.extend`; ids [n], n >= 1."""
        slots = torch.tensor([slot], device=self.device)
        for chunk in ids.split(PREFILL_CHUNK):
            n = padded(len(chunk)) if self.device.type == "cuda" else len(chunk)
            rows = torch.nn.functional.pad(chunk, (0, n - len(chunk)))[None]
            # A size that was met before is worth a graph; a lone prompt would only wait for it.
            self._append(slots, rows, torch.full_like(slots, len(chunk)), captured=n in self._met)
            if n <= CAPTURED_ROWS:
                self._met.add(n)

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        """See `Denoiser.copy`."""
        self._cache.copy(source, target)

    @torch.inference_mode()
    def denoise(self, slots: Tensor, canvas: Tensor) -> Tensor:
        """See `Denoiser.denoise`; logits in the model's dtype before the softcap, valid until the next call."""
        x = self._decoder.decode(slots, canvas, self._signal_weights, self._soft)
        return torch.mm(x, self._head.t(), out=self._logits[: len(x)])

    @torch.inference_mode()
    def condition(
        self, slots: Tensor, logits: Tensor, temps: Tensor, probs: Tensor | None, pinned: Tensor
    ) -> None:
        """See `Denoiser.condition`."""
        del logits, temps  # the softmax is all that is needed
        assert probs is not None, "the fused denoiser takes the sampler's softmax"
        embedding = self._weights.embedding
        soft = torch.mm(probs, embedding) * self._weights.embed_scale.to(embedding.dtype)
        soft = soft.view(*pinned.shape, -1).masked_fill(pinned[..., None], 0.0)
        self._soft.index_copy_(0, slots, soft)

    @torch.inference_mode()
    def commit(self, slots: Tensor, ids: Tensor) -> None:
        """See `Denoiser.commit`; batches are cut into powers of two, each of which is captured once."""
        done = 0
        while done < len(slots):
            size = 1 << (len(slots) - done).bit_length() - 1
            part = slice(done, done + size)
            counts = torch.full_like(slots[part], self.canvas_len)
            self._append(slots[part], ids[part], counts, captured=True)
            done += size

    def _append(self, slots: Tensor, ids: Tensor, counts: Tensor, *, captured: bool) -> None:
        """A causal pass, by its graph if `captured` and there is or can be one."""
        graph = self._graph((len(ids), ids.shape[1])) if captured else None
        if graph is None:
            self._encode(slots, ids, counts)
        else:
            graph.replay(slots, ids, counts)

    def _encode(self, slots: Tensor, ids: Tensor, counts: Tensor) -> None:
        self._encoder.encode(slots, ids, counts)
        self._soft.index_fill_(0, slots, 0.0)

    def _graph(self, shape: tuple[int, int]) -> Replay | None:
        """The captured causal pass over ids of that shape; None where causal passes run eagerly."""
        if not self._graphs or shape in self._refused or shape in self._causal:
            return self._causal.get(shape)
        spare = torch.full(shape[:1], self.num_slots, dtype=torch.int64, device=self.device)
        ids = torch.zeros(shape, dtype=torch.int64, device=self.device)
        try:
            # One causal pass at a time: their graphs can share what they take for a moment.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._causal[shape] = capture(self._encode, spare, ids, torch.ones_like(spare), pool=self._pool)
        except RuntimeError as error:
            # A graph is worth no request: the eager pass may well fit where memory for a graph has run out.
            self._refused[shape] = f"eager, capture failed: {str(error).splitlines()[0]}"
        return self._causal.get(shape)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """See `Denoiser.release`."""
        self._cache.lengths[slot] = 0
        self._soft[slot] = 0.0

    def parts(self, slots: Tensor, canvas: Tensor) -> dict[str, Callable[[], object]]:
        """A denoising pass in parts that can be timed alone: decoder, head, condition; by name."""
        rows = len(slots) * self.canvas_len
        probs = torch.rand(rows, self.vocab_size, device=self.device).to(self._head.dtype)
        temps = torch.ones(len(slots), device=self.device)
        pinned = torch.zeros(canvas.shape, dtype=torch.bool, device=self.device)
        x = self._decoder.decode(slots, canvas, self._signal_weights, self._soft).clone()
        spare = torch.full_like(slots, self.num_slots)
        return {
            "decoder": lambda: self._decoder.decode(slots, canvas, self._signal_weights, self._soft),
            "head": lambda: torch.mm(x, self._head.t(), out=self._logits[:rows]),
            "condition": lambda: self.condition(spare, probs, temps, probs, pinned),
        }


def padded(n: int) -> int:
    """Rows that a prefill of n takes: a dozen sizes, so that passes are captured once and used again.

    The steps between sizes are an eighth of the next power of two and at least 64. Large passes keep the card busy
    without a graph, and are as long as they are.
    """
    if n > CAPTURED_ROWS:
        return n
    step = max(64, (1 << (n - 1).bit_length()) // 8)
    return -(-n // step) * step


def require_fused(model: Any, *, device: torch.device | None = None) -> None:
    """Refuse a model, or a device that it is to run on, if not where it is.

    Raises:
        SettingsError: the fused denoiser can't run it there; the message says why.
    """
    device, hint = device or model.device, "Use --denoiser reference (or auto)."
    reason = unsupported(model, device=device)
    if reason is not None:
        raise SettingsError(f"the fused denoiser can't run this model: {reason}", hint=hint)
    if not has_triton():
        raise SettingsError(
            "the fused denoiser needs the package triton, which is not installed",
            hint="pip install triton, or use --denoiser reference (or auto).",
        )
    if device.type != "cuda" and not is_interpreted():
        raise SettingsError(
            f"the fused denoiser needs a CUDA device, and the model is on {device}", hint=hint
        )
