"""What `dgen bench step` times: a denoising step of each batch behind each prompt, its parts, prefill and commit.

A step is the engine's own, graphs and all, by the wall clock of whoever consumes its events. The peer is
transformers' `generate` on the same model object, by the marks between its decoder passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dgen.bench.experts import routed
from dgen.bench.floors import Sizes
from dgen.bench.measure import Bench, Body
from dgen.bench.parts import NAMES, STEP, admitted, part_calls
from dgen.bench.report import DGEN, TRANSFORMERS, Figure, Measurement, Work
from dgen.bench.runs import FAILURES, first_line, run_transformers
from dgen.bench.subject import Stand
from dgen.engine.request import Request

COMMITS = {"cpu": 2, "cuda": 5}
"""Most timed repeats of a commit or a prefill."""
CANVASES = COMMITS["cuda"] + 5
"""Canvases behind a prompt that a bench may commit, warming up included."""
_WARM = {"cpu": 1, "cuda": 5}
_PEER_SAMPLES = 10
_PEER_WARM = 4096  # a longer prompt takes seconds, and loads nothing that this one doesn't
HOST = "host"


@dataclass(slots=True)
class Peer:
    """transformers' `generate` of one batch: seconds of its steps, prefill and commit; or why there are none."""

    step: Measurement
    prefill: Measurement
    commit: Measurement
    hit: float | None = None


@dataclass(slots=True)
class StepSuite:
    """Figures of a stand, one batch and prompt length after the other.

    Args:
        peer: whether transformers is timed too.
        split: whether the parts of a step are timed.

    Attributes:
        cells: what is no time, for each batch and prompt: memory beyond the weights, experts hit.
    """

    bench: Bench
    stand: Stand
    peer: bool
    split: bool = True
    cells: list[dict[str, Any]] = field(default_factory=list)
    _sizes: Sizes = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = Sizes.of(self.stand.subject.model)

    def figures(self, batches: tuple[int, ...], prompts: tuple[int, ...]) -> Iterator[Figure]:
        """Every combination.

        Raises:
            DgenError: our engine failed; a failure of transformers' is written into its measurement instead.
        """
        for prompt in prompts:
            for batch in batches:
                yield from self._cell(batch, prompt, with_prefill=batch == batches[0])

    def _cell(self, batch: int, prompt: int, *, with_prefill: bool) -> Iterator[Figure]:
        where = f"b{batch}.p{prompt}"
        size = f"batch {batch}, prompt {prompt}"
        self.bench.progress(f"step, {size}: dgen")
        ours, beyond = self._steps(batch, prompt)
        peer = self._peer(batch, prompt) if self.peer else None
        requests = self.stand.subject.requests(batch=batch, prompt=prompt, tokens=1, steps=1_000_000)
        with torch.inference_mode(), admitted(self.stand, requests) as slots:
            hit = self._hit(slots)
            measured = self._measured(size, requests, slots) if self.split else {}
            commit = self._commit(where, size, prompt, slots)
        hit = hit if hit is not None or peer is None else peer.hit
        works = self._sizes.step(batch=batch, context=prompt, hit=hit)
        if with_prefill:
            yield _beside(self._prefill(prompt), peer.prefill if peer and batch == 1 else None)
        step = Figure(f"step.{where}", f"step, {size}", (ours,), tuple(works.values()))
        yield _beside(step, None if peer is None else peer.step)
        yield from self._parts(where, size, ours, measured, works)
        yield _beside(commit, None if peer is None else peer.commit)
        self.cells.append(
            {
                "batch": batch,
                "prompt": prompt,
                "beyond_weights_bytes": beyond,
                "experts_hit": hit,
                "num_experts": self._sizes.num_experts,
            }
        )

    def _steps(self, batch: int, prompt: int) -> tuple[Measurement, int | None]:
        """Seconds a step, and the most memory that was taken beyond the weights."""
        timer = self.bench.timer
        timer.reset_reserved()
        seconds = self.stand.steps(
            batch=batch, prompt=prompt, warm=_WARM[timer.device.type], repeats=self.bench.repeats
        )
        reserved = timer.peak_reserved()
        beyond = None if reserved is None else reserved - self.stand.subject.weight_bytes
        return Measurement(DGEN, seconds), beyond

    def _hit(self, slots: torch.Tensor) -> float | None:
        """Unique experts of a layer in one pass, where our denoiser can tell."""
        denoiser, model = self.stand.denoiser, self.stand.subject.model
        generator = torch.Generator().manual_seed(1)
        shape = (len(slots), denoiser.canvas_len)
        canvas = torch.randint(denoiser.vocab_size, shape, generator=generator).to(slots.device)
        with routed(model, keep="all") as seen:
            denoiser.denoise(slots, canvas)
        tells = getattr(denoiser.inner, "experts_hit", None)
        return seen.mean if tells is None else float(tells())

    def _measured(self, size: str, requests: list[Request], slots: torch.Tensor) -> dict[str, Figure]:
        """Figures of the parts by name, without floors."""
        return {
            name: self.bench.figure(name, f"step, {size}: {NAMES.get(name, name)}", [Body(DGEN, call, 0)])
            for name, call in part_calls(self.stand, requests, slots).items()
        }

    def _parts(
        self,
        where: str,
        size: str,
        ours: Measurement,
        measured: dict[str, Figure],
        works: dict[str, Work],
    ) -> Iterator[Figure]:
        for name in [*NAMES, *(name for name in measured if name not in NAMES and name != STEP)]:
            if name in measured:
                work = works.get(name)
                yield replace(
                    measured[name],
                    key=f"step.{where}.{name}",
                    part=NAMES.get(name, name),
                    floor=() if work is None else (work,),
                )
        device = measured[STEP].of(DGEN) if STEP in measured else None
        if device is not None and device.median and ours.median:
            yield Figure(
                f"step.{where}.device",
                f"step, {size}: on the device",
                (device,),
                part="whole step on the device",
            )
            rest = max(0.0, ours.median - device.median)
            yield Figure(
                f"step.{where}.{HOST}", f"step, {size}: host", (Measurement(DGEN, (rest,)),), part=HOST
            )

    def _prefill(self, prompt: int) -> Figure:
        denoiser = self.stand.denoiser
        (request,) = self.stand.subject.requests(batch=1, prompt=prompt, tokens=1, steps=1)
        ids = torch.tensor(request.prompt_ids, device=denoiser.device)

        def prefill() -> None:
            denoiser.release(0)
            denoiser.prefill(0, ids)

        figure = self._few().figure(
            f"prefill.p{prompt}",
            f"prefill, prompt {prompt}",
            [Body(DGEN, prefill, 0)],
            floor=self._sizes.causal_pass(batch=1, tokens=prompt, context=0),
        )
        denoiser.release(0)
        return figure

    def _commit(self, where: str, size: str, prompt: int, slots: torch.Tensor) -> Figure:
        """The context grows by a canvas with every sample."""
        denoiser = self.stand.denoiser
        generator = torch.Generator().manual_seed(2)
        shape = (len(slots), denoiser.canvas_len)
        ids = torch.randint(denoiser.vocab_size, shape, generator=generator).to(slots.device)
        return self._few().figure(
            f"commit.{where}",
            f"commit of a canvas, {size}",
            [Body(DGEN, lambda: denoiser.commit(slots, ids), 0)],
            floor=self._sizes.causal_pass(batch=len(slots), tokens=denoiser.canvas_len, context=prompt),
        )

    def _few(self) -> Bench:
        return replace(self.bench, repeats=min(self.bench.repeats, COMMITS[self.bench.device.type]))

    def _peer(self, batch: int, prompt: int) -> Peer:
        """Two canvases of a few steps; the first and the last step of each are left out, as they meet other work."""
        self.bench.progress(f"step, batch {batch}, prompt {prompt}: transformers")
        subject, timer = self.stand.subject, self.bench.timer
        canvas_len, steps = subject.canvas_len, 2 + -(-min(self.bench.repeats, _PEER_SAMPLES) // 2)
        warm = subject.requests(batch=batch, prompt=min(prompt, _PEER_WARM), tokens=1, steps=1)
        requests = subject.requests(batch=batch, prompt=prompt, tokens=2 * canvas_len, steps=steps)
        timer.reset_peak()
        try:
            run_transformers(subject, timer, warm)
            with routed(subject.model, keep="last") as seen:
                run, passes = run_transformers(subject, timer, requests)
        except FAILURES as error:
            skipped = Measurement(TRANSFORMERS, skipped=f"generate failed: {first_line(error)}")
            return Peer(skipped, skipped, skipped)
        peak = timer.peak_bytes()
        starts = passes.denoising
        seconds = tuple(
            timer.seconds(starts[i], starts[i + 1])
            for i in range(len(starts) - 1)
            if i % steps not in (0, steps - 1)
        )
        return Peer(
            Measurement(TRANSFORMERS, seconds, peak),
            Measurement(TRANSFORMERS, (run.prefill,), peak),
            Measurement(TRANSFORMERS, (run.commit,), peak),
            seen.mean,
        )


def _beside(figure: Figure, peer: Measurement | None) -> Figure:
    return figure if peer is None else replace(figure, measurements=(*figure.measurements, peer))
