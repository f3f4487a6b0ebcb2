"""The loop: admit, prefill, denoise until converged, stash, emit, commit, next canvas.

Takes Requests, yields events, knows only ids: it never prints and never decodes. Requests share denoising steps
but nothing else; each converges, ends and fails on its own. A consumer may call `stop` on a Converged event (stop
strings are text, hence not the engine's) and `interrupt` at any time; both act before the next step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dgen.denoiser.base import Denoiser
from dgen.engine.canvas import CanvasState
from dgen.engine.events import (
    Committed,
    Completion,
    Converged,
    ConvergedBy,
    Denoised,
    Emitted,
    Event,
    Finished,
    FinishReason,
    Prefilled,
)
from dgen.engine.limits import check_request
from dgen.engine.request import Request
from dgen.engine.stash import Converging, RowLogprobs, stash_logprobs
from dgen.engine.step import StepResult, StepView, denoising_step, read_back
from dgen.errors import DgenError, NumericalError, UsageError
from dgen.sampler import SamplerKernels


@dataclass(slots=True)
class _Job:
    """A running request and what it has reached."""

    index: int
    request: Request
    slot: int
    canvas: int = 0
    step: int = 0
    tokens: list[Emitted] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    converged_by: list[ConvergedBy] = field(default_factory=list)

    def pinned(self, canvas_len: int) -> frozenset[int]:
        """Positions of the current canvas that hold a pin."""
        first = self.canvas * canvas_len
        return frozenset(p - first for p in self.request.pins if first <= p < first + canvas_len)


class Engine:
    """Runs requests on a denoiser's slots.

    Args:
        denoiser: turns canvases into logits; the engine owns its slots while `run` is active.
        kernels: the sampler's implementation.
    """

    def __init__(self, denoiser: Denoiser, kernels: SamplerKernels) -> None:
        self.denoiser = denoiser
        self._kernels = kernels
        self._state = CanvasState(
            denoiser.num_slots, denoiser.canvas_len, denoiser.vocab_size, denoiser.device, kernels
        )
        self._stops: dict[int, int] = {}
        self._interrupted = False
        self._active = False

    def check(self, request: Request) -> None:
        """Refuse a request that can't be run, before any work; errors as in `check_request`."""
        check_request(
            request,
            canvas_len=self.denoiser.canvas_len,
            vocab_size=self.denoiser.vocab_size,
            max_context=self.denoiser.max_context,
        )

    def stop(self, index: int, kept: int) -> None:
        """End request `index` with reason "stop", keeping its first `kept` emitted tokens."""
        self._stops[index] = kept

    def interrupt(self) -> None:
        """End every running request before its next step, with reason "interrupted"; safe in a signal handler.

        Where nothing runs, the next run is the one that ends: an interrupt just before its first step is not lost.
        """
        self._interrupted = True

    def run(self, requests: Iterable[Request]) -> Generator[Event, None, None]:
        """Run requests to their end, as many at a time as there are slots, yielding events as they happen.

        A request that can't be run or that fails ends in a Finished event with reason "error"; the others go on.

        Raises:
            UsageError: an earlier run of this engine has not ended; its slots are taken.
        """
        if self._active:
            raise UsageError(
                "this model is already running a request", hint="Finish or close the earlier stream first."
            )
        self._active = True
        self._stops.clear()
        waiting = iter(enumerate(requests))
        free = list(range(self.denoiser.num_slots))[::-1]
        running: dict[int, _Job] = {}
        try:
            while True:
                while free and not self._interrupted and (next_one := next(waiting, None)) is not None:
                    job = _Job(*next_one, slot=free.pop())
                    running[job.slot] = job
                    yield from self._admit(job, running, free)
                if not running:
                    return
                if self._interrupted:
                    for job in list(running.values()):
                        yield self._finish(job, "interrupted", running, free)
                    return
                yield from self._step(running, free)
        finally:
            for slot in running:
                self.denoiser.release(slot)
            self._active = False
            self._interrupted = False  # here, so that an interrupt before the first step is not lost

    def _admit(self, job: _Job, running: dict[int, _Job], free: list[int]) -> Iterator[Event]:
        try:
            self.check(job.request)
            self.denoiser.prefill(
                job.slot, torch.tensor(job.request.prompt_ids, dtype=torch.int64, device=self.denoiser.device)
            )
        except DgenError as error:
            yield self._finish(job, "error", running, free, error)
            return
        except torch.OutOfMemoryError as full:
            yield self._finish(job, "error", running, free, _out_of_memory(full, "reading the prompt"))
            return
        self._state.admit(job.slot, job.request)
        yield Prefilled(job.index, job.slot, len(job.request.prompt_ids))

    def _step(self, running: dict[int, _Job], free: list[int]) -> Iterator[Event]:
        jobs = list(running.values())
        filtered = any(job.request.top_k > 0 or job.request.top_p < 1 for job in jobs)
        slots = [job.slot for job in jobs]
        try:
            result = denoising_step(self._state, self.denoiser, self._kernels, slots, filtered=filtered)
            seen = read_back(result)
            going_on, converging, failed = _sort_out(jobs, seen)
            # Before anything is yielded: a consumer may take its time, and the card need not wait for it.
            self._condition(result, jobs, going_on)
            cuts = {row: _cut(jobs[row], seen[row].argmax) for row in converging}
            logprobs = self._logprobs(result, jobs, cuts)
        except torch.OutOfMemoryError as full:
            for job in jobs:
                yield self._finish(job, "error", running, free, _out_of_memory(full, "a denoising step"))
            return
        for job, error in failed:
            job.step += 1
            yield self._finish(job, "error", running, free, error)
        for row in sorted([*going_on, *converging]):
            job = jobs[row]
            job.step += 1
            yield Denoised(
                job.index,
                job.canvas,
                job.step - 1,
                seen[row].temperature,
                seen[row].mean_entropy,
                seen[row].accepted,
                seen[row].argmax,
                seen[row].entropy,
            )
            if row in cuts:
                ids, reason = cuts[row]
                rows = logprobs.get(row)
                tokens = tuple(
                    Emitted(
                        token_id,
                        len(job.tokens) + p,
                        job.canvas,
                        job.step - 1,
                        seen[row].temperature,
                        seen[row].entropy[p],
                        *((rows[p].logprob, rows[p].rank, rows[p].top, rows[p].asked) if rows else ()),
                    )
                    for p, token_id in enumerate(ids)
                )
                yield from self._converge(job, tokens, reason, seen[row].confident, running, free)

    def _logprobs(
        self,
        result: StepResult,
        jobs: Sequence[_Job],
        cuts: dict[int, tuple[Sequence[int], FinishReason | None]],
    ) -> dict[int, list[RowLogprobs]]:
        canvas_len = self.denoiser.canvas_len
        converging = [
            Converging(row, jobs[row].request, ids, jobs[row].pinned(canvas_len))
            for row, (ids, _) in cuts.items()
        ]
        return stash_logprobs(self._kernels, result, canvas_len, converging)

    def _condition(self, result: StepResult, jobs: Sequence[_Job], going_on: Sequence[int]) -> None:
        """Hand the step's distribution to the denoiser for the slots that take another step."""
        if not going_on:
            return
        slots = [jobs[row].slot for row in going_on]
        logits, probs, temps = result.logits, result.probs, result.temps
        if len(going_on) < len(jobs):
            rows = torch.tensor(going_on, device=self.denoiser.device)
            shape = (len(jobs), self.denoiser.canvas_len, -1)
            logits = logits.view(shape)[rows].flatten(0, 1)
            probs = None if probs is None else probs.view(shape)[rows].flatten(0, 1)
            temps = temps[rows]
        pinned = self._state.pinned[torch.tensor(slots, device=self.denoiser.device)]
        self.denoiser.condition(slots, logits, temps, probs, pinned)

    def _converge(
        self,
        job: _Job,
        tokens: tuple[Emitted, ...],
        reason: FinishReason | None,
        confident: bool,
        running: dict[int, _Job],
        free: list[int],
    ) -> Iterator[Event]:
        converged_by: ConvergedBy = "confidence" if confident else "steps"
        job.tokens.extend(tokens)
        job.steps.append(job.step)
        job.converged_by.append(converged_by)
        steps, job.step = job.step, 0
        yield Converged(job.index, job.canvas, steps, converged_by, tokens)
        if job.index in self._stops:
            del job.tokens[self._stops.pop(job.index) :]
            reason = "stop"
        if reason is not None:
            yield self._finish(job, reason, running, free)
            return
        if self._interrupted:
            return  # `run` ends the request; a commit would only delay it
        try:
            self.denoiser.commit(job.slot, self._state.argmax[job.slot])
        except torch.OutOfMemoryError as full:
            yield self._finish(job, "error", running, free, _out_of_memory(full, "committing a canvas"))
            return
        yield Committed(job.index, job.canvas)
        job.canvas += 1
        self._state.begin_canvas(job.slot, job.request, job.canvas)

    def _finish(
        self,
        job: _Job,
        reason: FinishReason,
        running: dict[int, _Job],
        free: list[int],
        error: DgenError | None = None,
    ) -> Finished:
        del running[job.slot]
        self.denoiser.release(job.slot)
        free.append(job.slot)
        completion = Completion(
            index=job.index,
            tokens=tuple(job.tokens),
            finish_reason=reason,
            prompt_tokens=len(job.request.prompt_ids),
            steps=tuple([*job.steps, job.step] if job.step else job.steps),
            converged_by=tuple(job.converged_by),
            seed=job.request.seed,
            error=error.message if error else None,
            error_hint=error.hint if error else "",
        )
        return Finished(job.index, completion)


def _out_of_memory(error: torch.OutOfMemoryError, doing: str) -> DgenError:
    return DgenError(
        f"out of memory in {doing}: {str(error).splitlines()[0]}", hint="Shorten the prompt or --max-tokens."
    )


def _sort_out(
    jobs: Sequence[_Job], seen: Sequence[StepView]
) -> tuple[list[int], list[int], list[tuple[_Job, NumericalError]]]:
    """Rows that take another step, rows that converged at this one, and requests whose logits are broken."""
    going_on, converging, failed = [], [], []
    for row, (job, found) in enumerate(zip(jobs, seen, strict=True)):
        broken = next((p for p, entropy in enumerate(found.entropy) if entropy != entropy), None)
        if broken is not None:
            where = f"canvas {job.canvas}, step {job.step}, position {broken}"
            failed.append(
                (
                    job,
                    NumericalError(
                        f"the model's logits are not a distribution (NaN or nothing finite) at {where}",
                        hint="Check the checkpoint; if it runs in bfloat16, try --dtype float32.",
                    ),
                )
            )
        elif found.confident or job.step + 1 == job.request.steps:
            converging.append(row)
        else:
            going_on.append(row)
    return going_on, converging, failed


def _cut(job: _Job, argmax: Sequence[int]) -> tuple[Sequence[int], FinishReason | None]:
    """What a converged canvas emits (up to and with the first EOS, within the budget) and whether that is the end."""
    budget = job.request.max_tokens - len(job.tokens)
    for position, token_id in enumerate(argmax[:budget]):
        if token_id in job.request.eos_ids:
            return argmax[: position + 1], "eos"
    ids = argmax[:budget]
    return ids, "length" if len(ids) == budget else None
