"""A figure of the sampler with its peers: the kernels in use, the torch reference, and torch.compile of it.

Knows how peers are added, not what is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from dgen.bench.measure import Bench, Body
from dgen.bench.report import DGEN, REFERENCE, Figure, Measurement, Work
from dgen.sampler import SamplerKernels, chunks, kernels_for

COMPILED = "torch.compile"


@dataclass(frozen=True, slots=True)
class Peers:
    """Who is timed beside the kernels in use.

    `compiled` adds torch.compile of the reference, `only` is part of the keys of the figures that are wanted.
    """

    bench: Bench
    kernels: SamplerKernels
    compiled: bool
    only: str = ""

    def figure(
        self,
        key: str,
        title: str,
        call: Callable[[SamplerKernels], object],
        *,
        need: int,
        reference_need: int,
        floor: Work | None,
        skipped: str | None = None,
    ) -> Iterator[Figure]:
        """One figure, or none where `key` is not wanted: `call` with each implementation.

        The needs are bytes beyond the inputs. What torch.compile can't do is skipped with its own words.
        """
        if self.only not in key:
            return
        reference = kernels_for("torch", self.bench.device)
        same = self.kernels.name == reference.name
        bodies = [Body(DGEN, lambda: call(self.kernels), reference_need if same else need)]
        if not same:
            bodies.append(Body(REFERENCE, lambda: call(reference), reference_need))
        failure = None
        if self.compiled:
            compiled = _compile(reference)
            body = Body(COMPILED, lambda: call(compiled), reference_need)
            failure = skipped or self.bench.lack(reference_need) or self._try(title, body)
            if failure is None:
                bodies.append(body)
        figure = self.bench.figure(key, title, bodies, floor=floor, skipped=skipped)
        if failure is not None:
            missing = Measurement(COMPILED, skipped=failure)
            figure = replace(figure, measurements=(*figure.measurements, missing))
        yield figure

    def _try(self, title: str, body: Body) -> str | None:
        """Compile by a first call: why that failed, or None. A compiler fails in more ways than can be listed."""
        self.bench.progress(f"{title}: {body.by}, compiling")
        try:
            body.call()
        except Exception as error:
            first = str(error).strip().splitlines()
            return f"failed: {type(error).__name__}: {first[0][:120] if first else ''}"
        return None


def _compile(reference: SamplerKernels) -> SamplerKernels:
    """The references under torch.compile, which forgets what it compiled for earlier figures."""
    torch._dynamo.reset()
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    return replace(reference, row_stats=_compiled(reference.row_stats), stash=_compiled(reference.stash))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled as one tile of all rows: fused, it needs no tiles to bound its temporaries."""
    fused = torch.compile(function, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        bounded, chunks._TILE_ENTRIES = chunks._TILE_ENTRIES, 1 << 62
        try:
            return fused(*args, **kwargs)
        finally:
            chunks._TILE_ENTRIES = bounded

    return call
