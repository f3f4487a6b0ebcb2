"""The entropy-bound rule: temperature, accept, renoise, stable and confident, as pure tensor functions.

m requests, L canvas positions; every parameter that a request may set is a tensor [m]. The operations and
their order are those of transformers' LinearTemperatureScheduleLogitsProcessor, EntropyBoundSampler (arXiv
2505.24857) and StableAndConfidentStoppingCriteria, so that equal inputs give equal bits. Pins are ours: a
pinned position takes part in no decision. Nothing here reads a tensor back to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor


def temperature(t_min: Tensor, t_span: Tensor, steps: Tensor, remaining: Tensor) -> Tensor:
    """Temperature of the linear schedule, fp32 [m]: t_min + t_span * (remaining / steps).

    t_min and t_span are fp32 [m], where t_span is the double t_max - t_min rounded once; steps and remaining
    are integers [m], remaining = steps - step. The first step runs at t_max, the last one above t_min.
    """
    return t_min + t_span * (remaining.to(torch.float32) / steps.to(torch.float32))


def accept(entropy: Tensor, bound: Tensor, pinned: Tensor | None = None) -> Tensor:
    """Which positions keep their draw: bool [m, L].

    By ascending entropy (fp32 [m, L]; ties: lower position first), while the sum of those before stays within
    bound (fp32 [m], >= 0): at least one position of each canvas, unless all are pinned. A pinned position
    (bool [m, L]) is never accepted and uses up none of the bound; a NaN entropy is never accepted.
    """
    # Pins sort behind every number, so that they add nothing to the sum before a position that is free.
    key = entropy if pinned is None else entropy.masked_fill(pinned, float("inf"))
    own, order = torch.sort(key, dim=-1, descending=False, stable=True)
    within = torch.cumsum(own, dim=-1) - own <= bound[:, None]
    accepted = torch.zeros_like(within).scatter(-1, order, within)
    return accepted if pinned is None else accepted & ~pinned


def renoise(
    accepted: Tensor,
    draw: Tensor,
    random_ids: Tensor,
    pinned: Tensor | None = None,
    pin_ids: Tensor | None = None,
) -> Tensor:
    """The next canvas, int64 [m, L]: the draw where accepted, else the random id; pins go on top."""
    canvas = torch.where(accepted, draw, random_ids)
    if pinned is None:
        return canvas
    if pin_ids is None:
        raise ValueError("pinned positions were given without pin_ids")
    return torch.where(pinned, pin_ids, canvas)


def is_stable(argmax_canvas: Tensor, history: Tensor, seen: Tensor, stability: Tensor) -> Tensor:
    """Whether the argmax canvas equals each of the `stability` ones before it: bool [m].

    argmax_canvas is int64 [m, L]; history int64 [m, K, L] holds earlier argmax canvases, newest first
    (`remember`); seen [m] counts the canvases of this request in it (may exceed K); stability [m] is at most
    K, and 0 is always stable. What lies in the history beyond `seen`, such as another tenant's canvas, is
    never believed.
    """
    equal = (history == argmax_canvas[:, None, :]).all(dim=-1)
    unneeded = torch.arange(history.shape[1], device=history.device)[None, :] >= stability[:, None]
    return (equal | unneeded).all(dim=-1) & (seen >= stability)


def remember(argmax_canvas: Tensor, history: Tensor) -> Tensor:
    """The history [m, K, L] with this canvas in front and the oldest one dropped."""
    return torch.cat([argmax_canvas[:, None, :], history], dim=1)[:, : history.shape[1]]


def mean_entropy(entropy: Tensor, pinned: Tensor | None = None) -> Tensor:
    """Mean over unpinned positions, fp32 [m]; 0 where all are pinned, NaN where an unpinned one is NaN."""
    if pinned is None:
        return entropy.mean(dim=-1)
    free = (~pinned).sum(dim=-1)
    return entropy.masked_fill(pinned, 0.0).sum(dim=-1) / free.clamp(min=1)


def is_confident(entropy: Tensor, confidence: Tensor, pinned: Tensor | None = None) -> Tensor:
    """Whether the mean entropy over unpinned positions lies below confidence (fp32 [m]): bool [m].

    A canvas that is pinned everywhere is confident; one with a NaN entropy is not.
    """
    confident = mean_entropy(entropy, pinned) < confidence
    return confident if pinned is None else confident | pinned.all(dim=-1)
