"""The parts of a denoising step, each alone on inputs that stay as they are: where the time of a step goes.

Decoder, head and self-conditioning are the denoiser's to offer (`parts`); the sampler is a step of the engine's own
whose denoiser does nothing. On CUDA all are captured, as a step is, and timed by replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from dgen.bench.subject import Stand
from dgen.denoiser.base import Denoiser, Tell
from dgen.denoiser.capture import Replay, capture
from dgen.engine.canvas import CanvasState
from dgen.engine.request import Request
from dgen.engine.steps import Steps

STEP, SAMPLER = "step", "sampler"
NAMES = {
    "decoder": "decoder",
    "head": "LM head",
    SAMPLER: "sampler",
    "condition": "self-conditioning product",
}
"""Parts in their order, for people."""


@contextmanager
def admitted(stand: Stand, requests: list[Request]) -> Iterator[torch.Tensor]:
    """Slots int64 [m] whose KV holds the requests' prompts, released at the end."""
    denoiser = stand.denoiser
    try:
        for slot, request in enumerate(requests):
            denoiser.prefill(slot, torch.tensor(request.prompt_ids, device=denoiser.device))
        yield torch.arange(len(requests), device=denoiser.device)
    finally:
        stand.timer.wait()
        for slot in range(len(requests)):
            denoiser.release(slot)


def part_calls(stand: Stand, requests: list[Request], slots: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What runs each part once, by name: `step` (on CUDA), `sampler`, and what the denoiser offers.

    Must be called where the slots hold the requests' prompts, as the calls must.
    """
    denoiser = stand.denoiser
    generator = torch.Generator(denoiser.device).manual_seed(0)
    canvas = torch.randint(
        denoiser.vocab_size,
        (len(requests), denoiser.canvas_len),
        generator=generator,
        device=denoiser.device,
    )
    calls: dict[str, Callable[[], object]] = {}
    if denoiser.device.type == "cuda":  # on a CPU, the engine's own wall time is the same
        calls[STEP] = _steps(stand, denoiser, requests, denoiser.num_slots)
    still = _Still(denoiser, denoiser.denoise(slots, canvas).clone(), len(requests))
    calls[SAMPLER] = _steps(stand, still, requests, len(requests))
    offered = getattr(denoiser.inner, "parts", None)
    if offered is not None:
        for name, call in offered(slots, canvas).items():
            calls[name] = _captured(stand, call)
    return calls


def _steps(stand: Stand, denoiser: Denoiser, requests: list[Request], num_slots: int) -> Callable[[], object]:
    """A step of all requests by the engine's own `Steps`, on a state of its own."""
    state = CanvasState(num_slots, denoiser.canvas_len, denoiser.vocab_size, denoiser.device, stand.kernels)
    for slot, request in enumerate(requests):
        state.admit(slot, request)
    steps = Steps(state, denoiser, stand.kernels, graphs=stand.graphs)
    slots = list(range(len(requests)))
    return lambda: steps.run(slots, filtered=False)


def _captured(stand: Stand, call: Callable[[], object]) -> Callable[[], object]:
    """Replays of a call, where graphs are on and it can be captured; else the call."""
    if not (stand.graphs and stand.denoiser.capturable and stand.denoiser.device.type == "cuda"):
        return call
    try:
        found = capture(lambda _: call(), torch.zeros(1, device=stand.denoiser.device))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return call
    return partial(_replay, found, call)


def _replay(found: Replay, reads: Callable[[], object]) -> None:
    """`reads` holds the tensors that the graph reads: without it they are freed, and the graph reads them still."""
    del reads
    found.graph.replay()


class _Still:
    """A `Denoiser` that answers with the same logits and keeps nothing."""

    name = "still"
    capturable = True

    def __init__(self, denoiser: Denoiser, logits: torch.Tensor, num_slots: int) -> None:
        self._logits = logits
        self.num_slots = num_slots
        self.device = denoiser.device
        self.vocab_size = denoiser.vocab_size
        self.canvas_len = denoiser.canvas_len
        self.max_context = denoiser.max_context
        self.softcap = denoiser.softcap
        self.probs_dtype = denoiser.probs_dtype

    def denoise(self, slots: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        """Those logits."""
        del canvas
        return self._logits[: len(slots) * self.canvas_len]

    def condition(
        self,
        slots: torch.Tensor,
        logits: torch.Tensor,
        temps: torch.Tensor,
        probs: torch.Tensor | None,
        pinned: torch.Tensor,
    ) -> None:
        """Nothing."""

    def prepare(self, tell: Tell | None = None) -> None:
        """Nothing to make ready."""

    def prefill(self, slot: int, ids: torch.Tensor) -> None:
        """Nothing."""

    def extend(self, slot: int, ids: torch.Tensor) -> None:
        """Nothing."""

    def copy(self, source: int, target: int) -> None:
        """Nothing."""

    def commit(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """Nothing."""

    def release(self, slot: int) -> None:
        """Nothing."""
