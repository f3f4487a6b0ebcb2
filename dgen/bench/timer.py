"""Stopwatches for a CPU and for CUDA: marks in the stream of work, interleaved repeats, peak memory.

Knows callables and a device, and nothing of what they compute. Every sample is kept, in seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

_WARM_UP = {"cpu": 1, "cuda": 3}  # on CUDA kernels are compiled and the clocks rise
_FLUSH_BYTES = 1 << 30  # far larger than an L2 cache
_FLUSHES = 2  # half a millisecond on a fast card: longer than the host takes to launch a few kernels

Mark = Any
"""A moment: seconds on a CPU, a recorded event on CUDA."""


Progress = Callable[[str], None]
"""Called with what is being done, in a few words."""


class Timer:
    """Times work on one device.

    CUDA work is timed by events. `interleave` writes a large buffer before each call: it empties the L2 cache and
    keeps the card busy while the host launches, so that a sample is the work and not the launch of it.
    """

    def __init__(self, device: torch.device, *, flush_bytes: int = _FLUSH_BYTES) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        self._flush_bytes = flush_bytes if self._cuda else 0
        self._flush: torch.Tensor | None = None

    def mark(self) -> Mark:
        """The moment at which all work issued so far is done."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds from one mark to another; on CUDA after `wait`."""
        return start.elapsed_time(end) / 1e3 if self._cuda else end - start

    def wait(self) -> None:
        """Until the device has done everything issued."""
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def warm_up(self, call: Callable[[], object]) -> int | None:
        """Call a few times, untimed; returns `peak_bytes` of that."""
        self.reset_peak()
        for _ in range(_WARM_UP[self.device.type]):
            call()
        self.wait()
        return self.peak_bytes()

    def interleave(
        self, calls: Mapping[str, Callable[[], object]], repeats: int, *, progress: Progress = lambda _: None
    ) -> dict[str, tuple[float, ...]]:
        """Time each call `repeats` times in turns (A B, B A, A B ...), so that drift meets all of them alike.

        Returns the samples in seconds by name; warming up is the caller's part.
        """
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(repeats):
            for name in list(calls)[:: 1 if repeat % 2 == 0 else -1]:
                progress(f"{name} {repeat + 1}/{repeats}")
                seconds[name].append(self._sample(calls[name]))
        self._flush = None
        return {name: tuple(samples) for name, samples in seconds.items()}

    def _sample(self, call: Callable[[], object]) -> float:
        self._fill()
        start = self.mark()
        call()
        end = self.mark()
        self.wait()
        return self.seconds(start, end)

    def _fill(self) -> None:
        if not self._cuda:
            return
        if self._flush is None:
            size = min(self._flush_bytes, torch.cuda.mem_get_info(self.device)[0] // 4)
            self._flush = torch.empty(size, dtype=torch.int8, device=self.device)
        for _ in range(_FLUSHES):
            self._flush.zero_()

    def reset_peak(self) -> None:
        """Begin anew with `peak_bytes`, where the device can."""
        if self._cuda:
            self._flush = None
            torch.cuda.reset_peak_memory_stats(self.device)

    def reset_reserved(self) -> None:
        """Begin anew with `peak_reserved`; what runs next must ask the card for memory again, so it isn't timed."""
        if self._cuda:
            self._flush = None
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_reserved(self) -> int | None:
        """The most that torch took from the card since `reset_reserved`, captured graphs' own memory included.

        None on a CPU.
        """
        return int(torch.cuda.max_memory_reserved(self.device)) if self._cuda else None

    def peak_bytes(self) -> int | None:
        """CUDA: the most that tensors held since `reset_peak`, the model included. CPU: the process's peak so far."""
        if self._cuda:
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            import resource
        except ImportError:  # Windows
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
