"""How a request's prompt gets into its slot: read from nothing, or on top of a beginning that is held already.

Knows ids and slots. Sliding layers forget what their window has passed, so a held beginning can grow and can't
be cut: it serves the prompts that begin with all of it, and any other prompt starts a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgen.denoiser.base import Denoiser
from dgen.engine.request import Request


class Prompts:
    """Reads every prompt from nothing.

    Attributes:
        num_slots: how many slots are left for requests.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self.num_slots = denoiser.num_slots

    def read(self, slot: int, request: Request) -> int:
        """Write the KV of the prompt into a released slot; returns how many of its tokens were held already."""
        self._denoiser.prefill(slot, self._tensor(request.prompt_ids))
        return 0

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._denoiser.device)


class HeldPrefix(Prompts):
    """Keeps the beginning of the last prompt in the denoiser's last slot, for those that ask for it (`Request.hold`).

    A prompt that holds nothing leaves the held beginning as it is, and may still use it.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser)
        assert denoiser.num_slots > 1, "one slot is needed for the requests themselves"
        self.num_slots = denoiser.num_slots - 1
        self._slot = denoiser.num_slots - 1
        self._ids: tuple[int, ...] = ()

    def read(self, slot: int, request: Request) -> int:
        """See `Prompts.read`; errors leave nothing held."""
        ids, hold = request.prompt_ids, request.hold
        reused = len(self._ids) if ids[: len(self._ids)] == self._ids else 0
        if hold > reused:
            self._grow(ids[:hold], reused)
        if not hold and not reused:
            return super().read(slot, request)
        self._denoiser.copy(self._slot, slot)
        if len(ids) > len(self._ids):
            self._denoiser.extend(slot, self._tensor(ids[len(self._ids) :]))
        return reused

    def _grow(self, ids: tuple[int, ...], reused: int) -> None:
        # Forgotten first: whatever interrupts a pass, half a prefix is never taken for a whole one.
        self._ids = ()
        if not reused:
            self._denoiser.release(self._slot)
        self._denoiser.extend(self._slot, self._tensor(ids[reused:]))
        self._ids = ids
