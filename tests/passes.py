"""The same passes through two denoisers of one model, and how far apart their logits lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from close import distance

from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser


def capped(logits: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """fp32 logits after the softcap that is still to come."""
    logits = logits.float()
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


class Pair:
    """A reference and another denoiser side by side; every pass goes through both, on the reference's numbers.

    Attributes:
        apart: for each denoising pass, the relative distance of the logits of each slot.
    """

    def __init__(self, denoiser, reference: ReferenceDenoiser, *, vocab: int | None = None) -> None:
        self.denoiser, self.reference = denoiser, reference
        self.device, self.canvas_len = denoiser.device, denoiser.canvas_len
        self.vocab = vocab or denoiser.vocab_size
        self.generator = torch.Generator().manual_seed(11)
        self.apart: list[list[float]] = []

    def ids(self, *shape: int) -> torch.Tensor:
        return torch.randint(14, self.vocab, shape, generator=self.generator).to(self.device)

    def rows(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(slots), device=self.device)

    def prefill(self, lengths: dict[int, int]) -> None:
        for slot, length in lengths.items():
            prompt = self.ids(length)
            for each in (self.reference, self.denoiser):
                each.prefill(slot, prompt)

    def denoise(self, slots: Sequence[int], canvas: torch.Tensor | None = None) -> torch.Tensor:
        """One pass of both; the reference's logits, capped."""
        rows = self.rows(slots)
        canvas = self.ids(len(slots), self.canvas_len) if canvas is None else canvas
        want = capped(self.reference.denoise(rows, canvas), self.reference.softcap)
        got = capped(self.denoiser.denoise(rows, canvas), self.denoiser.softcap)
        pairs = zip(got.view(len(slots), -1), want.view(len(slots), -1), strict=True)
        self.apart.append([distance(a, b) for a, b in pairs])
        return want

    def condition(
        self, slots: Sequence[int], logits: torch.Tensor, temps: float, pinned: torch.Tensor
    ) -> None:
        rows = self.rows(slots)
        heat = torch.full((len(slots),), temps, device=self.device)
        self.reference.condition(rows, logits, heat, None, pinned)
        dtype = self.denoiser.probs_dtype
        probs = None if dtype is None else (logits / temps).softmax(-1).to(dtype)
        self.denoiser.condition(rows, logits, heat, probs, pinned)

    def commit(self, slots: Sequence[int]) -> None:
        canvas = self.ids(len(slots), self.canvas_len)
        for each in (self.reference, self.denoiser):
            each.commit(self.rows(slots), canvas)

    def pins(self, slots: Sequence[int], *positions: int) -> torch.Tensor:
        pinned = torch.zeros(len(slots), self.canvas_len, dtype=torch.bool, device=self.device)
        pinned[:, list(positions)] = True
        return pinned

    def walk(self, slots: Sequence[int], *, canvases: int = 3) -> float:
        """Canvases of two passes each, the second with self-conditioning and a pin: the largest distance."""
        for index in range(canvases):
            if index:
                self.commit(slots)
            logits = self.denoise(slots)
            self.condition(slots, logits, 0.7, self.pins(slots, *range(1, self.canvas_len, 5)))
            self.denoise(slots)
        return max(max(each) for each in self.apart)


def pair(model, *, num_slots: int = 1, twin=None, **settings) -> Pair:
    """Fused against reference over one model's weights, or over those of a `twin`."""
    fused = FusedDenoiser(model, num_slots=num_slots, **settings)
    return Pair(fused, ReferenceDenoiser(model if twin is None else twin, num_slots=num_slots))
