"""The row statistics of one denoising step: dgen's kernel beside its torch reference and transformers' own ops.

The floor counts the logits once for the statistics, and where a softmax is written, once more and the softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dgen.bench.logits import Logits, each_logits, name_of
from dgen.bench.measure import Bench, Body
from dgen.bench.report import DGEN, REFERENCE, TRANSFORMERS, Figure, Work
from dgen.sampler import SamplerKernels, kernels_for

_TILE_ENTRIES = 1 << 24  # a reference works on tiles of about so many logits
_TILE_TENSORS = 12  # and holds at most so many fp32 tensors of that size
_PEER_TENSORS = 8  # transformers' ops hold so many of the logits' own size


def row_stats_figures(bench: Bench, kernels: SamplerKernels, *, canvas: int, vocab: int) -> Iterator[Figure]:
    """Figures for each kind of [canvas, vocab] logits, without and with a softmax out (bf16 on CUDA, else fp32)."""
    probs_dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    for logits in each_logits(bench, canvas=canvas, vocab=vocab):
        yield bench.figure(
            f"row_stats.{logits.key}",
            f"row statistics, {logits.title}",
            _bodies(kernels, logits, None),
            floor=Work("logits read once", logits.bytes),
            skipped=logits.lack,
        )
        yield bench.figure(
            f"row_stats.{logits.key}.softmax_{name_of(probs_dtype)}",
            f"row statistics, {logits.title}, {name_of(probs_dtype)} softmax out",
            _bodies(kernels, logits, probs_dtype),
            floor=Work(
                "logits read twice, softmax written", 2 * logits.bytes + logits.entries * probs_dtype.itemsize
            ),
            skipped=logits.lack,
        )


def reference_need(entries: int) -> int:
    """About how many bytes a torch reference of the sampler holds while it works on `entries` logits."""
    return min(entries, _TILE_ENTRIES) * 4 * _TILE_TENSORS


def _bodies(kernels: SamplerKernels, logits: Logits, probs_dtype: torch.dtype | None) -> list[Body]:
    written = 0 if probs_dtype is None else logits.entries * probs_dtype.itemsize
    temps = logits.temps()

    def call(implementation: SamplerKernels) -> Callable[[], object]:
        return lambda: implementation.row_stats(
            logits.values, temps, logits.canvas, 0, probs_dtype, softcap=logits.softcap
        )

    reference = kernels_for("torch", logits.values.device)
    torch_need = written + reference_need(logits.entries)
    bodies = [Body(DGEN, call(kernels), torch_need if kernels.name == reference.name else written)]
    if kernels.name != reference.name:
        bodies.append(Body(REFERENCE, call(reference), torch_need))
    peer_need = written + _PEER_TENSORS * 4 * logits.entries

    def peer() -> object:
        return transformers_ops(logits.values, temps, probs_dtype, softcap=logits.softcap)

    return [*bodies, Body(TRANSFORMERS, peer, peer_need)]


def transformers_ops(
    logits: torch.Tensor,
    temps: torch.Tensor,
    probs_dtype: torch.dtype | None,
    *,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The same four results by the torch ops that transformers' DiffusionGemma step uses.

    logits [rows, vocab] and temps fp32 [1] -> argmax and draw int64 [rows], entropy fp32 [rows], softmax
    [rows, vocab] or None. The softcap is that of the model's forward, in fp32; the draw is torch.multinomial of the
    fp32 softmax, the entropy Categorical's. transformers computes the entropy twice a step; here it is once.
    """
    x = logits.float()
    if softcap is not None:
        x = torch.tanh(x / softcap) * softcap
    x = x / temps
    probs = torch.softmax(x, dim=-1, dtype=torch.float32)
    draw = torch.multinomial(probs, num_samples=1).squeeze(-1)
    argmax = torch.argmax(x, dim=-1)
    entropy = torch.distributions.Categorical(logits=x).entropy()
    return argmax, draw, entropy, None if probs_dtype is None else probs.to(probs_dtype)
