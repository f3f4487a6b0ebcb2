"""A request on its way: what was asked, under which settings, its text so far, and what came of it.

Keeps the text side (stop strings, thinking split) in step with the engine's events; runs nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dgen.engine.events import Completion, Converged, Event, Finished, Prefilled
from dgen.engine.request import Request
from dgen.errors import UsageError
from dgen.output.text import Piece, TextStream
from dgen.settings import Resolved, Settings


@dataclass(slots=True)
class Job:
    """A request on its way: what was asked, under which settings, and its text so far."""

    request: Request
    resolved: Resolved
    text: TextStream
    request_id: str
    begun: bool = False
    started: float = field(default_factory=time.perf_counter)
    prefilled: float | None = None
    completion: Completion | None = None
    finished: float | None = None

    def begin(self) -> None:
        """Start the clock.

        Raises:
            UsageError: the job has been run.
        """
        if self.begun:
            raise UsageError("this job has been run already", hint="Build another one with `job`.")
        self.begun, self.started = True, time.perf_counter()

    def interrupted_at_once(self) -> Finished:
        """The end of a job that an interrupt kept the engine from taking."""
        prompt, seed = len(self.request.prompt_ids), self.request.seed
        return Finished(0, Completion(0, (), "interrupted", prompt, (), (), seed))

    def timing(self, load_seconds: float) -> dict[str, float | None]:
        """Seconds: load (of the checkpoint, once), prefill, denoise (all canvases, commits included), total."""
        end = self.finished if self.finished is not None else time.perf_counter()
        prefilled = self.prefilled
        return {
            "load": load_seconds,
            "prefill": None if prefilled is None else prefilled - self.started,
            "denoise": None if prefilled is None else end - prefilled,
            "total": end - self.started,
        }

    def follow(self, event: Event, stop: Callable[[int, int], None]) -> list[Event | Piece]:
        """The event and the pieces of text that it releases, in the order in which they are told.

        Args:
            event: one of this request's own.
            stop: called with the event's index and the number of kept tokens once a stop string is found.
        """
        if isinstance(event, Prefilled):
            self.prefilled = time.perf_counter()
        elif isinstance(event, Converged):
            pieces = self.text.push(event.tokens)
            if self.text.stopped:
                stop(event.index, self.text.kept)
            return [event, *pieces]
        elif isinstance(event, Finished):
            pieces = self.text.finish()
            self.completion = _cut_at_stop(event.completion, self.text)
            self.finished = time.perf_counter()
            return [*pieces, Finished(event.index, self.completion)]
        return [event]


def _cut_at_stop(completion: Completion, text: TextStream) -> Completion:
    """A stop string may become certain only at the end of the text, when the engine has already finished."""
    if not text.stopped or completion.finish_reason == "error":
        return completion
    return replace(completion, tokens=completion.tokens[: text.kept], finish_reason="stop")


def build_request(asked: Settings, prompt_ids: tuple[int, ...], eos_ids: frozenset[int]) -> Request:
    """The engine's form of settings that have a seed."""
    assert asked.seed is not None
    return Request(
        prompt_ids=prompt_ids,
        eos_ids=eos_ids,
        max_tokens=asked.max_tokens,
        steps=asked.steps,
        entropy_bound=asked.entropy_bound,
        t_min=asked.t_min,
        t_max=asked.t_max,
        stability=asked.stability,
        confidence=asked.confidence,
        seed=asked.seed,
        top_k=asked.top_k,
        top_p=asked.top_p,
        logprobs=asked.logprobs,
        logprob_ids=asked.logprob_ids,
        logprobs_of="raw" if asked.logprobs_of == "raw" else "tempered",
        may_stop=bool(asked.stop),
    )


class HandedOut:
    """The jobs' requests, and each job by the index that the engine gives its request."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = iter(jobs)
        self._count = 0
        self.jobs: dict[int, Job] = {}

    def __iter__(self) -> HandedOut:
        return self

    def __next__(self) -> Request:
        job = next(self._waiting)
        job.begin()
        self.jobs[self._count] = job
        self._count += 1
        return job.request
