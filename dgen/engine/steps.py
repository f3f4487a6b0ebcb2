"""Denoising steps of a batch, replayed as CUDA graphs where that is possible.

One graph for each bucket of batch sizes holds the whole step: decoder, head, sampler, accept, renoise, convergence
and self-conditioning. Temperatures, seeds, lengths and pins lie on the device, so a replay needs nothing but the
slots' numbers; a batch smaller than its bucket is padded with the spare slot. What a step is stands in `step`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dgen.denoiser.base import Denoiser, Tell
from dgen.denoiser.capture import Replay, capture
from dgen.engine.canvas import CanvasState
from dgen.engine.step import Post, StepResult, denoising_step
from dgen.jit import compiling_only
from dgen.sampler import SamplerKernels


@dataclass(slots=True)
class _Captured:
    step: Replay
    depth: int
    """How deep the state's history was: a deeper one is another tensor, of which the graph knows nothing."""
    slots: list[int] = field(default_factory=list)
    """Those that the graph's input names."""


class Steps:
    """Runs denoising steps on a state.

    A result's tensors hold until the next step of any batch size.
    """

    def __init__(
        self, state: CanvasState, denoiser: Denoiser, kernels: SamplerKernels, *, graphs: bool
    ) -> None:
        self._state, self._denoiser, self._kernels = state, denoiser, kernels
        self._captured: dict[int, _Captured] = {}
        self._pool: Any = None
        self._refused: dict[int, str] = {}
        self._graphs = graphs and denoiser.capturable and denoiser.device.type == "cuda"
        self.ahead = denoiser.capturable and denoiser.device.type == "cuda"
        """Whether a launch returns long before the step is done, so that launching the next one early pays."""

    def run(self, slots: Sequence[int], *, filtered: bool) -> StepResult:
        """One step of `slots`; `filtered` as in `denoising_step`, and never captured: sorting needs much memory."""
        if self._graphs and not filtered:
            size = bucket(len(slots), self._denoiser.num_slots)
            captured = self._graph(size)
            if captured is not None:
                padded = [*slots, *[self._denoiser.num_slots] * (size - len(slots))]
                if padded == captured.slots:
                    result = captured.step.again()
                else:
                    captured.slots = []  # whatever cuts this off leaves the input unknown
                    result = captured.step.replay(torch.tensor(padded))
                    captured.slots = padded
                return result if size == len(slots) else result.first(len(slots))
        rows = torch.tensor(slots, device=self._state.device)
        return denoising_step(self._state, self._denoiser, self._kernels, rows, filtered=filtered)

    def prepare(self, tell: Tell | None = None, *, most: int | None = None) -> None:
        """Compile what passes and steps need, and capture every bucket, or those of up to `most` slots."""
        self._denoiser.prepare(tell)
        if not self._graphs:
            return
        num_slots = self._denoiser.num_slots
        sizes = sorted({bucket(m, num_slots) for m in range(1, (most or num_slots) + 1)}, reverse=True)
        started = time.perf_counter()
        with torch.inference_mode(), compiling_only():
            for size in sizes:
                denoising_step(self._state, self._denoiser, self._kernels, self._spare(size), filtered=False)
        self._state.clear_spare()  # no kernel ran: what is in it are no token ids
        _say(tell, f"steps: compiled in {time.perf_counter() - started:.1f} s")
        for size in sizes:
            started = time.perf_counter()
            if self._graph(size) is None:
                _say(tell, f"steps of {size}: eager, {self._refused[size]}")
            else:
                _say(tell, f"steps of {size}: captured in {time.perf_counter() - started:.1f} s")

    def _spare(self, size: int) -> torch.Tensor:
        """Slots of a batch that is nothing but padding."""
        return torch.full((size,), self._denoiser.num_slots, dtype=torch.int64, device=self._state.device)

    def _graph(self, size: int) -> _Captured | None:
        depth = self._state.history.shape[1]
        captured = self._captured.get(size)
        if captured is not None and captured.depth == depth:
            return captured
        if size in self._refused:
            return None
        self._captured.pop(size, None)
        try:
            self._captured[size] = self._capture(size, depth)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._refused[size] = f"capture failed: {str(error).splitlines()[0]}"
            return None
        return self._captured[size]

    def _capture(self, size: int, depth: int) -> _Captured:
        post = Post(size, self._denoiser.canvas_len)

        def step(rows: torch.Tensor) -> StepResult:
            return denoising_step(self._state, self._denoiser, self._kernels, rows, filtered=False, post=post)

        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return _Captured(capture(step, self._spare(size), pool=self._pool), depth)


def bucket(m: int, num_slots: int) -> int:
    """The batch size that m slots are padded to: the next power of two, or all slots."""
    return min(1 << (m - 1).bit_length(), num_slots)


def _say(tell: Tell | None, line: str) -> None:
    if tell is not None:
        tell(line)
