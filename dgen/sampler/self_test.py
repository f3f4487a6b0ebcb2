"""The kernels against their references, on one device, at small shapes: a check of a machine, not of the code.

What a broken driver, compiler or card would get wrong shows here in a second; the tests of this room go far deeper.
Knows tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from dgen.sampler.kernels import kernels_for
from dgen.sampler.noise import Purpose

# One chunk that is not full, and several with a rest; soft-capped and not; a draw, a sharp one and greedy.
_VOCABS = (517, 3000)
_SOFTCAPS = (None, 30.0)
_TEMPS = (0.8, 0.05, 0.0)
_CANVAS_LEN = 4
_NUM_TOPK = 3
_TOLERANCE = 1e-4  # nats; fp32 sums in another order stay well below


def self_test(device: torch.device) -> list[str]:
    """What Triton's kernels compute otherwise than torch's references on `device`; empty when all agree.

    Raises:
        SettingsError: Triton's kernels can't run on `device`.
        Exception: whatever a compiler or a driver raises.
    """
    wrong = []
    for vocab_size, softcap in product(_VOCABS, _SOFTCAPS):
        logits = _logits(vocab_size, device)
        case = f"vocabulary {vocab_size}, softcap {softcap or 'off'}"
        wrong += [f"{name} differs ({case})" for name in _differences(logits, softcap)]
    return wrong


def _logits(vocab_size: int, device: torch.device) -> Tensor:
    """fp32 [3 requests * canvas_len, vocab], the same numbers on every machine; some entries are masked."""
    numbers = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(len(_TEMPS) * _CANVAS_LEN, vocab_size, generator=numbers) * 8
    logits[1, ::2] = float("-inf")
    return logits.to(device)


def _differences(logits: Tensor, softcap: float | None) -> Iterator[str]:
    fused, plain = kernels_for("triton", logits.device), kernels_for("torch", logits.device)
    temps = torch.tensor(_TEMPS, device=logits.device)
    names = ("argmax", "draw", "entropy", "softmax")
    pair = [
        k.row_stats(logits, temps, _CANVAS_LEN, 7, torch.float32, softcap=softcap) for k in (fused, plain)
    ]
    for name, ours, theirs in zip(names, *pair, strict=True):
        if ours is None or theirs is None or not _agree(ours, theirs):
            yield name
    stashed = ("log-probability ids", "log-probabilities", "ranks")
    # Not greedy: at T = 0 the losers' log-probabilities are a rounding error over 1e-10.
    warm = temps.clamp(min=0.05)
    both = [_stash(k.stash, logits, warm, softcap) for k in (fused, plain)]
    for name, ours, theirs in zip(stashed, *both, strict=True):
        if not _agree(ours, theirs):
            yield name
    place = torch.arange(2, device=logits.device)
    sizes = {"canvas_len": _CANVAS_LEN, "vocab_size": logits.shape[1], "purpose": Purpose.RENOISE}
    if not _agree(*(k.random_ids(place, place, place, **sizes) for k in (fused, plain))):
        yield "random ids"


def _stash(
    stash: Callable[..., None], logits: Tensor, temps: Tensor, softcap: float | None
) -> tuple[Tensor, ...]:
    device, m = logits.device, len(temps)
    place = torch.arange(m, device=device)
    out_ids = torch.zeros(m, _CANVAS_LEN, 1 + _NUM_TOPK, dtype=torch.int64, device=device)
    out_logprobs = torch.zeros(m, _CANVAS_LEN, 1 + _NUM_TOPK, device=device)
    out_ranks = torch.zeros(m, _CANVAS_LEN, dtype=torch.int64, device=device)
    stash(
        logits, _CANVAS_LEN, place, place, torch.ones(m, dtype=torch.bool, device=device),
        torch.full((m,), _CANVAS_LEN, device=device), temps, _NUM_TOPK, torch.zeros_like(place), None,
        out_ids, out_logprobs, out_ranks, False, softcap=softcap,
    )  # fmt: skip
    return out_ids, out_logprobs, out_ranks


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    if ours.is_floating_point():
        return torch.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE)
    return torch.equal(ours, theirs)
