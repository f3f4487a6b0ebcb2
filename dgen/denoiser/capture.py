"""A function of tensors as a CUDA graph: captured once at fixed shapes, replayed on other values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Replay:
    """A captured call and the tensors that it reads its arguments from."""

    graph: Any
    inputs: tuple[Tensor, ...]
    result: Any

    def replay(self, *values: Tensor) -> Any:
        """Run it on `values`, of the shapes that were captured; the result's tensors hold until the next replay."""
        for held, value in zip(self.inputs, values, strict=True):
            held.copy_(value, non_blocking=True)
        return self.again()

    def again(self) -> Any:
        """Run it on the values of the last time."""
        self.graph.replay()
        return self.result


@functools.cache
def _stream(device: torch.device) -> Any:
    """One for all captures: torch keeps a workspace of cuBLAS for every stream that has run a product."""
    return torch.cuda.Stream(device)


def capture(function: Callable[..., Any], *inputs: Tensor, pool: Any = None) -> Replay:
    """Capture `function(*inputs)` after running it once: kernels are compiled and libraries set up before.

    Args:
        inputs: CUDA tensors that the graph will read from; the run before works on what they hold.
        pool: memory that other graphs share, which never run at the same time.
    """
    device = inputs[0].device
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.inference_mode():
        with torch.cuda.stream(stream):
            function(*inputs)
        stream.synchronize()
        # What the run before held would lie beside the graph's own memory for good.
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = function(*inputs)
    torch.cuda.current_stream(device).wait_stream(stream)
    return Replay(graph, inputs, result)
