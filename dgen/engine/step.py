"""One denoising step of some slots: logits -> row statistics -> accept/renoise -> converged -> self-conditioning.

Pure tensor work on a CanvasState and a Denoiser, without a word to the host; decides nothing about requests. The
law is the loop of transformers' `DiffusionGemmaGenerationMixin._denoising_step`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dgen.denoiser.base import Denoiser
from dgen.engine.canvas import CanvasState
from dgen.sampler import SamplerKernels, entropy_bound
from dgen.sampler.filters import filter_logits
from dgen.sampler.noise import Purpose


@dataclass(slots=True)
class StepResult:
    """What one step found for m slots.

    raw and sampled logits are [m * canvas_len, vocab] (one tensor where no filter is on), with `softcap` still
    to be applied to both, temps fp32 [m],
    entropy fp32 [m, canvas_len], mean_entropy fp32 [m], argmax int64 and accepted bool [m, canvas_len],
    confident (stable and confident) bool [m]. A NaN in `entropy` marks a row that defines no distribution.
    `packed` is what `read_back` reads: float64 [m, 3 * canvas_len + 3]; `post` where it is on its way to the host
    already.
    """

    raw_logits: torch.Tensor
    logits: torch.Tensor
    softcap: float | None
    temps: torch.Tensor
    entropy: torch.Tensor
    mean_entropy: torch.Tensor
    argmax: torch.Tensor
    accepted: torch.Tensor
    confident: torch.Tensor
    packed: torch.Tensor
    post: Post | None = None

    def first(self, m: int) -> StepResult:
        """The result of the first m slots, as views."""
        per_row: dict[str, Any] = {
            name: value[: m * (len(value) // len(self.temps))]
            for name in self.__slots__
            if isinstance(value := getattr(self, name), torch.Tensor)
        }
        return replace(self, **per_row)


class Post:
    """A captured step's way to tell the host what it found before it has ended: page-locked memory, and an event.

    The self-conditioning product, which nobody waits for, then runs while the host decides how to go on.
    """

    def __init__(self, size: int, canvas_len: int) -> None:
        self._held = torch.empty(size, 3 * canvas_len + 3, dtype=torch.float64, pin_memory=True)
        self._there = torch.cuda.Event(external=True)

    def send(self, packed: torch.Tensor) -> None:
        """To be captured, behind what computes `packed`."""
        self._held.copy_(packed, non_blocking=True)
        self._there.record()

    def receive(self) -> torch.Tensor:
        """What the last launched step has sent, waiting for it; to be called before the next launch sends again."""
        self._there.synchronize()
        return self._held.clone()


@torch.inference_mode()
def denoising_step(
    state: CanvasState,
    denoiser: Denoiser,
    kernels: SamplerKernels,
    rows: torch.Tensor,
    *,
    filtered: bool,
    post: Post | None = None,
) -> StepResult:
    """Denoise the canvases of the slots `rows` (int64 [m]) once and advance their rows of `state`.

    A slot that converges is conditioned like the others; its commit or release forgets that.

    Args:
        filtered: whether any of the slots has top_k or top_p on (known on the host, so nothing is read back).
        post: takes the result to the host as soon as it is known.
    """
    steps, step = state.steps[rows], state.step[rows]
    raw_logits = denoiser.denoise(rows, state.ids[rows])
    temps = entropy_bound.temperature(state.t_min[rows], state.t_span[rows], steps, steps - step)
    logits = raw_logits
    if filtered:
        logits = filter_logits(
            raw_logits,
            temps,
            state.canvas_len,
            top_k=state.top_k[rows],
            top_p=state.top_p[rows],
            softcap=denoiser.softcap,
        )
    argmax, draw, entropy, probs = kernels.row_stats(
        logits,
        temps,
        state.canvas_len,
        0,
        denoiser.probs_dtype,
        softcap=denoiser.softcap,
        row_seeds=state.seeds[rows],
        canvases=state.canvas[rows],
        steps=step,
    )
    shape = (len(rows), state.canvas_len)
    argmax, draw, entropy = argmax.view(shape), draw.view(shape), entropy.view(shape)
    pinned = state.pinned[rows]
    accepted, mean_entropy, confident = _update(state, rows, argmax, draw, entropy)
    argmax = state.argmax[rows]
    per_slot = torch.stack([mean_entropy, temps, confident], dim=1)
    # Doubles hold ids and fp32 values exactly.
    packed = torch.cat([entropy, argmax.double(), accepted, per_slot], dim=1)
    if post is not None:
        post.send(packed)
    denoiser.condition(rows, logits, temps, probs, pinned)
    return StepResult(
        raw_logits,
        logits,
        denoiser.softcap,
        temps,
        entropy,
        mean_entropy,
        argmax,
        accepted,
        confident,
        packed,
        post,
    )


def _update(
    state: CanvasState, rows: torch.Tensor, argmax: torch.Tensor, draw: torch.Tensor, entropy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accept, renoise, judge and advance: (accepted [m, canvas_len], mean entropy [m], stable and confident [m])."""
    pinned, pin_ids = state.pinned[rows], state.pin_ids[rows]
    accepted = entropy_bound.accept(entropy, state.bound[rows], pinned)
    noise = state.random_ids(rows, Purpose.RENOISE)
    state.ids[rows] = entropy_bound.renoise(accepted, draw, noise, pinned, pin_ids)
    argmax = torch.where(pinned, pin_ids, argmax)
    history = state.history[rows]
    stable = entropy_bound.is_stable(argmax, history, state.seen[rows], state.stability[rows])
    confident = entropy_bound.is_confident(entropy, state.confidence[rows], pinned)
    state.history[rows] = entropy_bound.remember(argmax, history)
    state.seen[rows] += 1
    state.step[rows] += 1
    state.argmax[rows] = argmax
    return accepted, entropy_bound.mean_entropy(entropy, pinned), stable & confident


@dataclass(frozen=True, slots=True)
class StepView:
    """What the host sees of one slot after a step; fields as in StepResult."""

    entropy: tuple[float, ...]
    argmax: tuple[int, ...]
    accepted: tuple[bool, ...]
    mean_entropy: float
    temperature: float
    confident: bool


class Reading:
    """A step's result on the host, in one copy: first what decides how it goes on, then, when asked, all of it.

    Args:
        packed: `StepResult.packed`, on the host.

    Attributes:
        confident: of each slot.
        broken: the first position of each slot whose row defines no distribution; None where all do.
    """

    def __init__(self, packed: torch.Tensor, canvas_len: int) -> None:
        self._packed, self._canvas_len = packed, canvas_len
        self.confident: list[bool] = [flag != 0 for flag in packed[:, -1].tolist()]
        self.broken: list[int | None] = [None] * len(packed)
        nan = packed[:, :canvas_len].isnan()
        if nan.any():
            first = nan.int().argmax(dim=1).tolist()
            self.broken = [at if row[at] else None for at, row in zip(first, nan.tolist(), strict=True)]

    def argmax(self, row: int) -> tuple[int, ...]:
        """One slot's."""
        n = self._canvas_len
        return tuple(int(token_id) for token_id in self._packed[row, n : 2 * n].tolist())

    def views(self) -> list[StepView]:
        """Of each slot; a third of a millisecond of plain Python for 2,048 positions, which no card need wait for."""
        n = self._canvas_len
        return [
            StepView(
                tuple(row[:n]),
                tuple(int(token_id) for token_id in row[n : 2 * n]),
                tuple(flag != 0 for flag in row[2 * n : 3 * n]),
                row[3 * n],
                row[3 * n + 1],
                row[3 * n + 2] != 0,
            )
            for row in self._packed.tolist()
        ]


def read_back(result: StepResult) -> Reading:
    """The one device-to-host copy of a step, which waits for it; once for each step, before the next is launched."""
    packed = result.packed.cpu() if result.post is None else result.post.receive()[: len(result.packed)]
    return Reading(packed, result.entropy.shape[1])
