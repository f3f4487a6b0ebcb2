"""From callables to a figure: what memory can hold is warmed up and timed in turns, the rest is skipped by name.

Knows how to time, not what: the cases are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dgen.bench.report import Figure, Measurement, Work
from dgen.bench.settings import CPU_REPEATS, CUDA_REPEATS
from dgen.bench.timer import Progress, Timer


@dataclass(frozen=True, slots=True)
class Body:
    """One way to compute a figure: `call` does it once, `need` is about how many bytes that takes beyond its inputs."""

    by: str
    call: Callable[[], object]
    need: int


@dataclass(frozen=True, slots=True)
class Bench:
    """What every case needs.

    Args:
        timer: of the device.
        repeats: timed calls of each body.
        free_memory: bytes that can still be allocated on a device.
        progress: told what is being timed.
    """

    timer: Timer
    repeats: int
    free_memory: Callable[[torch.device], int]
    progress: Progress

    @classmethod
    def on(
        cls,
        device: torch.device,
        repeats: int | None,
        free_memory: Callable[[torch.device], int],
        progress: Progress,
    ) -> Bench:
        """A bench of a device; `repeats` None takes the default there."""
        default = CUDA_REPEATS if device.type == "cuda" else CPU_REPEATS
        return cls(Timer(device), repeats or default, free_memory, progress)

    @property
    def device(self) -> torch.device:
        """Where everything runs."""
        return self.timer.device

    def lack(self, need: int) -> str | None:
        """Why `need` bytes can't be had, or None when they can."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what torch keeps for later counts as taken
        have = self.free_memory(self.device)
        return None if need <= have else f"needs {gigabytes(need)} of memory, {gigabytes(have)} are free"

    def figure(
        self,
        key: str,
        title: str,
        bodies: Sequence[Body],
        *,
        floor: Work | None = None,
        skipped: str | None = None,
    ) -> Figure:
        """Measure the bodies; `skipped` leaves all of them out with that reason."""
        reasons, peaks = {}, {}
        for body in bodies:
            reasons[body.by] = skipped or self.lack(body.need)
            if reasons[body.by] is None:
                self.progress(f"{title}: {body.by}, warm-up")
                try:
                    peaks[body.by] = self.timer.warm_up(body.call)
                except torch.OutOfMemoryError:
                    reasons[body.by] = f"the device ran out of memory ({gigabytes(body.need)} were expected)"
        calls = {body.by: body.call for body in bodies if reasons[body.by] is None}
        seconds = self.timer.interleave(
            calls, self.repeats, progress=lambda what: self.progress(f"{title}: {what}")
        )
        measurements = tuple(
            Measurement(body.by, seconds.get(body.by, ()), peaks.get(body.by), reasons[body.by])
            for body in bodies
        )
        return Figure(key, title, measurements, () if floor is None else (floor,))


def gigabytes(size: float) -> str:
    """A size for people: 1.5 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
