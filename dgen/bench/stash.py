"""The stash of a converging step: every row kept with K = 20, and none kept (what all other steps pay)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dgen.bench.logits import TEMPERATURE, Logits, each_logits
from dgen.bench.measure import Bench, Body
from dgen.bench.report import DGEN, PLAIN, REFERENCE, Figure, Work
from dgen.bench.row_stats import reference_need
from dgen.sampler import SamplerKernels, kernels_for

TOP_K = 20
_PLAIN_TENSORS = 5  # the plain torch ops hold so many fp32 tensors of the logits' size

Stashed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Ids int64 and log-probabilities fp32 [..., 1 + K], the argmax first, and its rank int64 [...]."""


def stash_figures(bench: Bench, kernels: SamplerKernels, *, canvas: int, vocab: int) -> Iterator[Figure]:
    """Figures for each kind of [canvas, vocab] logits of one request."""
    for logits in each_logits(bench, canvas=canvas, vocab=vocab):
        yield bench.figure(
            f"stash.{logits.key}.kept",
            f"stash, {logits.title}, {canvas} rows kept, K = {TOP_K}",
            _bodies(kernels, logits, keep=True),
            floor=Work("logits read once", logits.bytes),
            skipped=logits.lack,
        )
        yield bench.figure(
            f"stash.{logits.key}.none",
            f"stash, {logits.title}, none kept",
            _bodies(kernels, logits, keep=False),
            skipped=logits.lack,
        )


def _bodies(kernels: SamplerKernels, logits: Logits, *, keep: bool) -> list[Body]:
    entries = logits.entries if keep else 0
    reference = kernels_for("torch", logits.values.device)
    same = kernels.name == reference.name
    bodies = [Body(DGEN, stash_call(kernels, logits, keep=keep), reference_need(entries) if same else 0)]
    if not same:
        bodies.append(Body(REFERENCE, stash_call(reference, logits, keep=keep), reference_need(entries)))
    if keep:
        bodies.append(Body(PLAIN, lambda: plain_logprobs(logits), _PLAIN_TENSORS * 4 * entries))
    return bodies


def stash_call(kernels: SamplerKernels, logits: Logits, *, keep: bool) -> Callable[[], Stashed]:
    """A call that stashes one request into outputs of its own, preallocated, and returns them."""
    device, canvas = logits.values.device, logits.canvas
    zero, valid = torch.tensor([0], device=device), torch.tensor([canvas], device=device)
    keeps, temps = torch.tensor([keep], device=device), logits.temps()
    ids = torch.zeros(1, canvas, 1 + TOP_K, dtype=torch.int64, device=device)
    logprobs = torch.zeros(1, canvas, 1 + TOP_K, device=device)
    ranks = torch.zeros(1, canvas, dtype=torch.int64, device=device)

    def call() -> Stashed:
        kernels.stash(
            logits.values, canvas, zero, zero, keeps, valid, temps, TOP_K, zero, None, ids, logprobs, ranks, False,
            softcap=logits.softcap,
        )  # fmt: skip
        return ids, logprobs, ranks

    return call


def plain_logprobs(logits: Logits) -> Stashed:
    """What one would write by hand: log_softmax, topk, rank."""
    x = logits.values.float()
    if logits.softcap is not None:
        x = torch.tanh(x / logits.softcap) * logits.softcap
    best = x.argmax(dim=-1, keepdim=True)
    rank = (x >= x.gather(-1, best)).sum(dim=-1)
    logprobs = torch.log_softmax(x / TEMPERATURE, dim=-1)
    top, ids = torch.topk(logprobs, min(TOP_K, x.shape[-1]), dim=-1)
    return torch.cat([best, ids], dim=-1), torch.cat([logprobs.gather(-1, best), top], dim=-1), rank
