"""The loop: admit, prefill, denoise until converged, stash, emit, commit, next canvas.

Takes Requests, yields events, knows only ids: it never prints and never decodes. Requests share denoising steps
but nothing else; each converges, ends and fails on its own. A consumer may call `stop` on a Converged event (stop
strings are text, hence not the engine's) and `interrupt` at any time; both act before the next step that counts: the
device may be a step ahead, which nobody sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence

import torch

from dgen.denoiser.base import Denoiser, Tell
from dgen.engine.canvas import CanvasState
from dgen.engine.events import (
    Committed,
    Converged,
    ConvergedBy,
    Denoised,
    Emitted,
    Event,
    Finished,
    FinishReason,
    Prefilled,
)
from dgen.engine.job import Job, cut, out_of_memory, sort_out
from dgen.engine.limits import check_request
from dgen.engine.prompts import HeldPrefix, Prompts
from dgen.engine.request import Request
from dgen.engine.stash import Converging, Stashed, stash_logprobs
from dgen.engine.step import StepResult, read_back
from dgen.engine.steps import Steps
from dgen.errors import DgenError, MemoryLimitError, UsageError
from dgen.sampler import SamplerKernels


class Engine:
    """Runs requests on a denoiser's slots.

    Args:
        denoiser: turns canvases into logits; the engine owns its slots while `run` is active.
        kernels: the sampler's implementation.
        graphs: whether steps are captured as CUDA graphs, where the denoiser allows it.

    Attributes:
        max_running: at most this many requests run at a time; a lower value lets running ones end.
    """

    def __init__(self, denoiser: Denoiser, kernels: SamplerKernels, *, graphs: bool = True) -> None:
        self.denoiser = denoiser
        self.max_running = denoiser.num_slots
        self._prompts = Prompts(denoiser)
        self._kernels = kernels
        self._state = CanvasState(
            denoiser.num_slots, denoiser.canvas_len, denoiser.vocab_size, denoiser.device, kernels
        )
        self._steps = Steps(self._state, denoiser, kernels, graphs=graphs)
        self._launched: tuple[list[Job], StepResult] | None = None
        self._stops: dict[int, int] = {}
        self._interrupted = False
        self._active = False

    def prepare(self, tell: Tell | None = None) -> None:
        """Compile and capture what a step needs, so that the first one is as fast as the others.

        Args:
            tell: called with a line about each thing that was captured or could not be, and why.
        """
        self._steps.prepare(tell, most=self._prompts.num_slots)

    def hold_prefix(self) -> None:
        """Give up the denoiser's last slot to the KV of a prompt's beginning (see `Request.hold`); needs two slots."""
        assert not self._active, "hold_prefix while requests run"
        self._prompts = HeldPrefix(self.denoiser)
        self.max_running = self._prompts.num_slots

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
        self.require_idle()
        waiting = enumerate(requests)  # may raise, hence before the engine is taken
        self._active = True
        self._stops.clear()
        free = list(range(self._prompts.num_slots))[::-1]
        running: dict[int, Job] = {}
        try:
            while True:
                while (
                    free
                    and not self._interrupted
                    and len(running) < max(self.max_running, 1)
                    and (next_one := next(waiting, None)) is not None
                ):
                    job = Job(*next_one, slot=free.pop())
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
            self._drop_launched()
            self._active = False
            self._interrupted = False  # here, so that an interrupt before the first step is not lost

    def require_idle(self) -> None:
        """Raises UsageError: an earlier run of this engine has not ended; its slots are taken."""
        if self._active:
            raise UsageError(
                "this model is already running a request", hint="Finish or close the earlier stream first."
            )

    def _admit(self, job: Job, running: dict[int, Job], free: list[int]) -> Iterator[Event]:
        try:
            self.check(job.request)
            reused = self._prompts.read(job.slot, job.request)
            self._state.admit(job.slot, job.request)
        except DgenError as error:
            yield self._finish(job, "error", running, free, error)
            return
        except torch.OutOfMemoryError as full:
            yield self._finish(job, "error", running, free, out_of_memory(full, "reading the prompt"))
            return
        yield Prefilled(job.index, job.slot, len(job.request.prompt_ids), reused)

    def _drop_launched(self) -> None:
        """Forget a step that ran ahead, once it has told the host what it had to: until then it writes there."""
        if self._launched is not None:
            launched, self._launched = self._launched, None
            with contextlib.suppress(RuntimeError):  # a device that fails has said so before
                read_back(launched[1])

    def _launch(self, jobs: list[Job]) -> tuple[list[Job], StepResult]:
        filtered = any(job.request.top_k > 0 or job.request.top_p < 1 for job in jobs)
        return jobs, self._steps.run([job.slot for job in jobs], filtered=filtered)

    def _step(self, running: dict[int, Job], free: list[int]) -> Iterator[Event]:
        try:
            launched, self._launched = self._launched, None
            jobs, result = launched or self._launch(list(running.values()))
            reading = read_back(result)
            # Whoever was stopped after this step was launched has no part in it any more.
            alive = [row for row, job in enumerate(jobs) if running.get(job.slot) is job]
            going_on, converging, failed = sort_out(jobs, alive, reading)
            cuts = {row: cut(jobs[row], reading.argmax(row)) for row in converging}
            stashed = self._stash(result, jobs, cuts)
        except torch.OutOfMemoryError as error:
            # All of them: a launch ahead may have moved on the row of one that was not in this step.
            yield from self._fail(
                list(running.values()), out_of_memory(error, "a denoising step"), running, free
            )
            return
        # Nothing of this result is needed on the device any more, so it goes on while the consumer looks at the step;
        # not where a slot becomes free, which the next request would then enter a step later.
        lasting = [jobs[row] for row, (_, reason) in cuts.items() if reason is None]
        ahead = self._steps.ahead and not self._interrupted
        ahead = ahead and len(going_on) + len(lasting) == len(alive)
        ahead = ahead and not any(job.request.may_stop for job in lasting)
        dropped, full = self._run_ahead(lasting, list(running.values())) if ahead else ([], None)
        seen, logprobs = reading.views(), stashed.rows()
        to_commit: list[Job] = []
        for job, broken in failed:
            job.step += 1
            yield self._finish(job, "error", running, free, broken)
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
                tokens = job.emitted(ids, seen[row], logprobs.get(row))
                yield from self._converge(job, tokens, reason, seen[row].confident, running, free, to_commit)
        if full is not None:
            yield from self._fail(dropped, full, running, free)
        elif to_commit and not self._interrupted:  # else `run` ends them; a commit would only delay it
            yield from self._commit(to_commit, running, free, begun=ahead)

    def _run_ahead(
        self, lasting: Sequence[Job], everyone: list[Job]
    ) -> tuple[Sequence[Job], MemoryLimitError | None]:
        """Begin the next canvas of those that last, and launch everyone's next step; who fails at it, and why."""
        try:
            self._begin_next(lasting)
        except torch.OutOfMemoryError as error:
            return lasting, out_of_memory(error, "committing a canvas")
        try:
            self._launched = self._launch(everyone)
        except torch.OutOfMemoryError as error:
            return everyone, out_of_memory(error, "a denoising step")
        return [], None

    def _begin_next(self, jobs: Sequence[Job]) -> None:
        """Commit canvases and begin the next ones, on the device."""
        if jobs:
            slots = self._state.numbers([job.slot for job in jobs])
            self.denoiser.commit(slots, self._state.argmax[slots])
        for job in jobs:
            self._state.begin_canvas(job.slot, job.request, job.canvas + 1)

    def _stash(
        self,
        result: StepResult,
        jobs: Sequence[Job],
        cuts: dict[int, tuple[Sequence[int], FinishReason | None]],
    ) -> Stashed:
        canvas_len = self.denoiser.canvas_len
        converging = [
            Converging(row, jobs[row].request, ids, jobs[row].pinned(canvas_len))
            for row, (ids, _) in cuts.items()
        ]
        return stash_logprobs(self._kernels, result, canvas_len, converging)

    def _converge(
        self,
        job: Job,
        tokens: tuple[Emitted, ...],
        reason: FinishReason | None,
        confident: bool,
        running: dict[int, Job],
        free: list[int],
        to_commit: list[Job],
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
        else:
            to_commit.append(job)

    def _commit(
        self, jobs: Sequence[Job], running: dict[int, Job], free: list[int], *, begun: bool
    ) -> Iterator[Event]:
        try:
            if not begun:
                self._begin_next(jobs)
        except torch.OutOfMemoryError as full:
            yield from self._fail(jobs, out_of_memory(full, "committing a canvas"), running, free)
            return
        for job in jobs:
            job.canvas += 1
        for job in jobs:
            yield Committed(job.index, job.canvas - 1)

    def _fail(
        self, jobs: Sequence[Job], error: DgenError, running: dict[int, Job], free: list[int]
    ) -> Iterator[Event]:
        for job in jobs:
            if running.get(job.slot) is job:
                yield self._finish(job, "error", running, free, error)

    def _finish(
        self,
        job: Job,
        reason: FinishReason,
        running: dict[int, Job],
        free: list[int],
        error: DgenError | None = None,
    ) -> Finished:
        del running[job.slot]
        self.denoiser.release(job.slot)
        free.append(job.slot)
        return Finished(job.index, job.completion(reason, error))
