"""CanvasState: everything that a denoising step reads and writes, preallocated, one row a slot.

Whatever a request sets or has reached lives in its row and nowhere else, so that admitting the next request
(`CanvasState.admit`) leaves nothing of the last one. Knows tensors and Requests, no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgen.engine.request import Request
from dgen.sampler import SamplerKernels
from dgen.sampler.noise import Purpose


class CanvasState:
    """Tensors of `num_slots` requests on one device.

    Shapes: canvases are int64 [slots, canvas_len], masks bool [slots, canvas_len], per-request numbers [slots]. A
    spare row behind the last slot, which no request ever has, pads a batch.
    """

    def __init__(
        self,
        num_slots: int,
        canvas_len: int,
        vocab_size: int,
        device: torch.device,
        kernels: SamplerKernels,
    ) -> None:
        self._random_ids = kernels.random_ids
        self.canvas_len = canvas_len
        self.vocab_size = vocab_size
        self.device = device
        num_rows = num_slots + 1
        self._numbers = torch.arange(num_rows, device=device)

        def per_slot(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(num_rows, dtype=dtype, device=device)

        def per_position(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(num_rows, canvas_len, dtype=dtype, device=device)

        self.ids = per_position(torch.int64)
        self.argmax = per_position(torch.int64)
        self.pinned = per_position(torch.bool)
        self.pin_ids = per_position(torch.int64)
        # Argmax canvases of the steps before, newest first; deepened when a request's stability asks for more.
        self.history = torch.zeros(num_rows, 1, canvas_len, dtype=torch.int64, device=device)
        self.seen = per_slot(torch.int64)
        self.step = per_slot(torch.int64)
        self.canvas = per_slot(torch.int64)
        self.seeds = per_slot(torch.int64)
        self.steps = per_slot(torch.int64)
        self.t_min = per_slot(torch.float32)
        self.t_span = per_slot(torch.float32)
        self.bound = per_slot(torch.float32)
        self.stability = per_slot(torch.int64)
        self.confidence = per_slot(torch.float32)
        self.top_k = per_slot(torch.int64)
        self.top_p = torch.ones(num_rows, dtype=torch.float32, device=device)
        self.steps.fill_(1)  # a spare row divides by it
        self.t_min.fill_(1.0)

    def admit(self, slot: int, request: Request) -> None:
        """Fill the slot's row from a request and start its first canvas."""
        self.seeds[slot] = request.seed
        self.steps[slot] = request.steps
        self.t_min[slot] = request.t_min
        # The difference is taken in double precision and then rounded, as transformers' schedule does.
        self.t_span[slot] = request.t_max - request.t_min
        self.bound[slot] = request.entropy_bound
        self.stability[slot] = request.stability
        self.confidence[slot] = request.confidence
        self.top_k[slot] = request.top_k
        self.top_p[slot] = request.top_p
        missing = request.stability - self.history.shape[1]
        if missing > 0:
            older = self.history.new_zeros(self.history.shape[0], missing, self.canvas_len)
            self.history = torch.cat([self.history, older], dim=1)
        self.begin_canvas(slot, request, 0)

    def numbers(self, slots: Sequence[int]) -> torch.Tensor:
        """The slots' numbers, int64 [m]; made on the device, as a copy would wait for all that it has still to do."""
        return torch.cat([self._numbers[slot : slot + 1] for slot in slots])

    def clear_spare(self) -> None:
        """Give the spare row token ids and no history."""
        for tensor in (self.ids, self.argmax, self.history, self.seen, self.step):
            tensor[-1] = 0

    def begin_canvas(self, slot: int, request: Request, canvas: int) -> None:
        """Random ids of the whole vocabulary, the request's seed canvas and pins laid over them."""
        self.canvas[slot] = canvas
        self.step[slot] = 0
        self.seen[slot] = 0
        self.ids[slot] = self.random_ids(self.numbers([slot]), Purpose.INIT)[0]
        first = canvas * self.canvas_len
        given = request.seed_canvas[first : first + self.canvas_len]
        if given:
            self.ids[slot, : len(given)] = torch.tensor(given, device=self.device)
        self.pinned[slot] = False
        self.pin_ids[slot] = 0
        for position, token_id in request.pins.items():
            if first <= position < first + self.canvas_len:
                self.pinned[slot, position - first] = True
                self.pin_ids[slot, position - first] = token_id
        self.ids[slot] = torch.where(self.pinned[slot], self.pin_ids[slot], self.ids[slot])
        self.argmax[slot] = self.ids[slot]

    def random_ids(self, rows: torch.Tensor, purpose: Purpose) -> torch.Tensor:
        """Uniform ids for the current canvas and step of the slots `rows` [m]: int64 [m, canvas_len]."""
        return self._random_ids(
            self.seeds[rows],
            self.canvas[rows],
            self.step[rows],
            canvas_len=self.canvas_len,
            vocab_size=self.vocab_size,
            purpose=purpose,
        )
