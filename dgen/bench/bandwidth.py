"""This machine's copy bandwidth: the yardstick of every floor."""

from __future__ import annotations

import torch

from dgen.bench.measure import Bench, gigabytes
from dgen.bench.report import Bandwidth
from dgen.errors import DgenError

COPY_BYTES = 1 << 30
"""Far larger than a last-level cache, so that memory is measured."""


def copy_bandwidth(bench: Bench, *, copy_bytes: int = COPY_BYTES) -> Bandwidth:
    """Copy `copy_bytes` from one place of the device's memory to another; less where a quarter of what is free is less.

    Raises:
        DgenError: hardly any memory is free.
    """
    size = min(copy_bytes, bench.free_memory(bench.device) // 4)
    if size < 1 << 20:
        raise DgenError(
            f"{gigabytes(bench.free_memory(bench.device))} of memory are free on {bench.device}: too little to measure",
            hint="Close other programs that use it.",
        )
    source = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    bench.progress("copy bandwidth")
    bench.timer.warm_up(copy)
    samples = bench.timer.interleave({"copy": copy}, bench.repeats)
    return Bandwidth(2 * size, samples["copy"])
