"""What the sampler's figures are fed: random normal logits x 3 of one request, at T = 0.6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dgen.bench.measure import Bench

TEMPERATURE = 0.6
SOFTCAP = 30.0
_SPREAD = 3.0


@dataclass(frozen=True, slots=True)
class Logits:
    """One input: `values` [canvas, vocab], the softcap still to be applied to it, and its shape and bytes.

    Where memory can't hold it, `lack` says so and `values` is empty.
    """

    values: torch.Tensor
    softcap: float | None
    canvas: int
    vocab: int
    lack: str | None = None

    @property
    def entries(self) -> int:
        """How many logits there are."""
        return self.canvas * self.vocab

    @property
    def bytes(self) -> int:
        """Their size."""
        return self.entries * self.values.dtype.itemsize

    @property
    def key(self) -> str:
        """Part of a figure's key."""
        return name_of(self.values.dtype) + ("" if self.softcap is None else ".softcap")

    @property
    def title(self) -> str:
        """Part of a figure's title."""
        capped = "" if self.softcap is None else f", softcap {self.softcap:g}"
        return f"{name_of(self.values.dtype)} logits{capped}"

    def temps(self) -> torch.Tensor:
        """fp32 [1]."""
        return torch.full((1,), TEMPERATURE, device=self.values.device)


def each_logits(bench: Bench, *, canvas: int, vocab: int) -> Iterator[Logits]:
    """fp32 without softcap; on CUDA then bf16 with it."""
    kinds: list[tuple[torch.dtype, float | None]] = [(torch.float32, None)]
    if bench.device.type == "cuda":
        kinds.append((torch.bfloat16, SOFTCAP))
    for dtype, softcap in kinds:
        yield draw_logits(bench, rows=canvas, vocab=vocab, dtype=dtype, softcap=softcap)


def draw_logits(bench: Bench, *, rows: int, vocab: int, dtype: torch.dtype, softcap: float | None) -> Logits:
    """One input, the same in every run."""
    lack = bench.lack(rows * vocab * (4 + dtype.itemsize))
    return Logits(_draw(bench, 0 if lack else rows, vocab, dtype), softcap, rows, vocab, lack)


def name_of(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def _draw(bench: Bench, canvas: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(bench.device).manual_seed(0)
    logits = torch.randn(canvas, vocab, generator=generator, device=bench.device)
    return logits.mul_(_SPREAD).to(dtype)
