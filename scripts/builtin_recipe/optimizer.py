"""AdamW with gradient clipping and an average of the weights, on one flat vector, every number a tensor.

No host reads, so that a CUDA graph can hold a whole step; the learning rate is set between replays.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BETA1, BETA2, EPS, CLIP, AVERAGE = 0.9, 0.98, 1e-9, 1.0, 0.999


@dataclass(frozen=True, slots=True)
class State:
    """`flat` is trained, `average` follows it; the rest is AdamW's memory. All fp32, all updated in place."""

    flat: Tensor
    average: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor
    rate: Tensor


def start(flat: Tensor) -> State:
    """A fresh state around the weights `flat`, on their device."""
    flat = flat.clone().requires_grad_(True)
    at = flat.detach()
    zero = torch.zeros((), device=flat.device)
    return State(flat, at.clone(), torch.zeros_like(at), torch.zeros_like(at), zero, zero.clone())


@torch.no_grad()
def update(state: State, grad: Tensor, *, decay: float = 0.01) -> None:
    """One clipped AdamW step and one step of the average, which is shorter while it is young."""
    grad = grad * (CLIP / (grad.norm() + 1e-6)).clamp(max=1.0)
    state.steps.add_(1.0)
    state.mean.lerp_(grad, 1 - BETA1)
    state.square.lerp_(grad.square(), 1 - BETA2)
    mean = state.mean / (1 - BETA1**state.steps)
    square = state.square / (1 - BETA2**state.steps)
    state.flat.mul_(1 - state.rate * decay).sub_(state.rate * mean / (square.sqrt() + EPS))
    keep = torch.minimum(torch.full_like(state.steps, AVERAGE), (1 + state.steps) / (10 + state.steps))
    state.average.lerp_(state.flat, 1 - keep)
