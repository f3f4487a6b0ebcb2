"""One clock for both bodies of a step: marks around the causal passes, and before those of the decoder.

Our engine is clocked by a wrapper of its denoiser, transformers' generate by hooks on the model's two halves; either
way a mark is taken just before and just after each causal pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from dgen.bench.timer import Mark, Timer
from dgen.denoiser.base import Denoiser

_PREPARE = "_prepare_encoder_inputs"


@dataclass(slots=True)
class Passes:
    """What one run did: (start, end) of its causal passes, the prompts' first, and the start of each decoder pass."""

    causal: list[tuple[Mark, Mark]] = field(default_factory=list)
    denoising: list[Mark] = field(default_factory=list)


class ClockedDenoiser:
    """A `Denoiser` that is another one and keeps its causal `passes`.

    Decoder passes are left alone: a captured one runs without this wrapper.
    """

    def __init__(self, denoiser: Denoiser, timer: Timer) -> None:
        self.inner = denoiser
        self._timer = timer
        self.passes = Passes()
        self.name = denoiser.name
        self.device = denoiser.device
        self.vocab_size = denoiser.vocab_size
        self.canvas_len = denoiser.canvas_len
        self.num_slots = denoiser.num_slots
        self.max_context = denoiser.max_context
        self.softcap = denoiser.softcap
        self.probs_dtype = denoiser.probs_dtype
        self.capturable = denoiser.capturable
        self.denoise = denoiser.denoise
        self.condition = denoiser.condition
        self.release = denoiser.release
        self.prepare = denoiser.prepare

    def __getattr__(self, name: str) -> Any:
        """Whatever else the denoiser offers."""
        return getattr(self.inner, name)

    def prefill(self, slot: int, ids: torch.Tensor) -> None:
        """See `Denoiser.prefill`."""
        start = self._timer.mark()
        self.inner.prefill(slot, ids)
        self.passes.causal.append((start, self._timer.mark()))

    def commit(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """See `Denoiser.commit`."""
        start = self._timer.mark()
        self.inner.commit(slots, ids)
        self.passes.causal.append((start, self._timer.mark()))


@contextmanager
def clocked(model: Any, timer: Timer) -> Iterator[Passes]:
    """Keep the passes that a DiffusionGemmaForBlockDiffusion makes inside the block.

    A causal pass begins where `generate` begins to prepare its masks: our denoiser makes them in the pass itself.
    """
    passes = Passes()
    started: list[Mark] = []

    def before_causal(_module: Any, _args: Any) -> None:
        if not started:
            started.append(timer.mark())

    def after_causal(_module: Any, _args: Any, _output: Any) -> None:
        passes.causal.append((started.pop(), timer.mark()))

    def before_denoising(_module: Any, _args: Any) -> None:
        passes.denoising.append(timer.mark())

    prepare = getattr(model, _PREPARE, None)

    def marked_prepare(*args: Any, **kwargs: Any) -> Any:
        before_causal(None, None)
        assert prepare is not None
        return prepare(*args, **kwargs)

    hooks = [
        model.model.encoder.register_forward_pre_hook(before_causal),
        model.model.encoder.register_forward_hook(after_causal),
        model.model.decoder.register_forward_pre_hook(before_denoising),
    ]
    if prepare is not None:
        setattr(model, _PREPARE, marked_prepare)
    try:
        yield passes
    finally:
        if prepare is not None:
            delattr(model, _PREPARE)
        for hook in hooks:
            hook.remove()
