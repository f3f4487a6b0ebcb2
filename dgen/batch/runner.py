"""The run itself: takes lines, keeps the slots busy, hands what is finished to the writer.

A line that fails becomes a record with an error; when memory runs out, fewer requests run at a time for a while and
the one that failed waits its turn again. Knows a Generator by its methods; prints nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dgen.batch import envelope
from dgen.batch.item import Item, line_seed
from dgen.batch.room import Room
from dgen.batch.source import Problem, Source
from dgen.batch.tally import Tally
from dgen.batch.writer import Writer
from dgen.engine.events import Completion, Event, Finished
from dgen.errors import DgenError, MemoryLimitError, UsageError, as_ours
from dgen.output.records import Record
from dgen.output.text import Piece
from dgen.settings import Resolved

if TYPE_CHECKING:
    from dgen.generator import Generator
    from dgen.job import Job


class Runner:
    """One run over a source.

    Args:
        generator: answers.
        source: gives the lines.
        writer: takes the records.
        run_seed: what seeds of lines without one come from.
        tally: kept up to date, but for what is the writer's.
        tell: called with what the user should know, in a line, and what to try, which may be empty.
        show: called after each event, to show the tally.
    """

    def __init__(
        self,
        generator: Generator,
        source: Source,
        writer: Writer,
        *,
        run_seed: int,
        tally: Tally,
        tell: Callable[[str, str], None] = lambda text, hint: None,
        show: Callable[[], None] = lambda: None,
    ) -> None:
        self._generator, self._source, self._writer = generator, source, writer
        self._run_seed, self._tally, self._tell, self._show = run_seed, tally, tell, show
        self._again: deque[Item] = deque()
        self._room = Room(generator.denoiser.num_slots)
        # By request id: the line, its job, and how often the room had shrunk when it came in.
        self._running: dict[str, tuple[Item, Job, int]] = {}
        self.interrupted = False

    def interrupt(self) -> None:
        """End soon: running requests are left for another time. Safe in a signal handler."""
        self.interrupted = True
        self._source.stop()
        self._generator.engine.interrupt()

    def check_prompts(self, items: Callable[[], Item | Problem | None]) -> set[int]:
        """What only the tokenizer knows, before the first step: prompts that can't be run are written as failed.

        Args:
            items: gives one line after the other, then None.

        Returns:
            their line numbers.
        """
        refused = set()
        while not self.interrupted and isinstance(item := items(), Item):
            if self._build(item) is None:
                refused.add(item.number)
            self._show()
        return refused

    def run(self) -> None:
        """Run the source to its end.

        Raises:
            OutputError, BrokenPipeError: the output can't be written.
        """
        while True:
            for job, event in self._events():
                self._tally.hear(event)
                if isinstance(event, Finished):
                    self._finish(job, event.completion)
                self._show()
            if self.interrupted or (self._source.ended and not self._again):
                return

    def _events(self) -> Iterator[tuple[Job, Event | Piece]]:
        try:
            yield from self._generator.run_many(_Feed(self._next))
        except (MemoryError, RuntimeError) as error:
            # The engine foresees a card's memory alone: a CPU's ends its run.
            full = as_ours(error)
            if not isinstance(full, MemoryLimitError):
                raise
            self._start_over(full)

    def _next(self) -> Job | None:
        """The next job; None when there is none, or none for now."""
        while not self.interrupted:
            if len(self._running) >= self._room.limit:
                return None
            item = self._again.popleft() if self._again else self._source.take(wait=not self._running)
            if item is None:
                return None
            if isinstance(item, Problem):
                self._refuse_line(item)
            elif (job := self._build(item)) is not None:
                self._running[job.request_id] = item, job, self._room.shrunk
                self._tally.running = len(self._running)
                return job
        return None

    def _build(self, item: Item) -> Job | None:
        """The line's job; None where it can't be run, which is written then."""
        settings = {**item.settings, "seed": self._seed(item)}
        try:
            return self._generator.job(
                item.prompt,
                messages=item.messages,
                system=item.system,
                raw=item.raw,
                request_id=str(item.number),
                **settings,
            )
        except Exception as error:  # whatever goes wrong with one line, the others are worth having
            asked = replace(item.resolved.settings, seed=settings["seed"])
            self._refuse(item, as_ours(error), Resolved(asked, item.resolved.sources))
            return None

    def _start_over(self, error: DgenError) -> None:
        """Memory ran out, and all that ran is gone: each waits its turn again, but for one that was alone."""
        for number, (item, job, shrunk) in list(self._running.items()):
            del self._running[number]
            if self._make_room(shrunk):
                self._again.append(item)
            else:
                self._tell(f"line {item.number}: {error.message}", error.hint)
                self._writer.put(partial(self._broken, item, job, error), item.number, failed=True)
        self._tally.running = 0

    def _seed(self, item: Item) -> int:
        own = item.resolved.settings.seed
        return line_seed(self._run_seed, item.key) if own is None else own

    def _finish(self, job: Job, completion: Completion) -> None:
        item, _, shrunk = self._running.pop(job.request_id)
        self._tally.running = len(self._running)
        if completion.finish_reason == "interrupted":
            return
        if completion.out_of_memory and self._make_room(shrunk):
            self._again.append(item)
            return
        failed = completion.finish_reason == "error"
        if failed:
            self._tell(f"line {item.number}: {completion.error}", completion.error_hint)
        else:
            self._room.ended_well()
            self._generator.engine.max_running = self._room.limit
        self._writer.put(
            partial(self._record, item, partial(self._generator.record, job)),
            item.number,
            failed=failed,
            instead=partial(self._broken, item, job),
        )

    def _broken(self, item: Item, job: Job, error: DgenError) -> Record:
        """The record of a request that was answered, but whose record could not be built."""
        tokens = len(job.request.prompt_ids)
        return self._record(item, self._failed(item, error, job.resolved, prompt_tokens=tokens))

    def _make_room(self, shrunk: int) -> bool:
        """Let fewer requests run; False where this one failed with the memory to itself."""
        if shrunk < self._room.shrunk:
            return True  # one of several that failed together
        beside = len(self._running)
        if beside:
            self._room.shrink(beside + 1)
            self._tell(f"out of memory: going on with {self._room.limit} at a time for now", "")
        else:
            self._room.restore()
        self._generator.engine.max_running = self._room.limit
        return beside > 0

    def _refuse_line(self, problem: Problem) -> None:
        settings = replace(self._generator.resolved.settings, seed=self._run_seed)
        resolved = Resolved(settings, self._generator.resolved.sources)
        self._refuse(problem, UsageError(problem.reason, hint=problem.hint), resolved)

    def _refuse(self, line: Item | Problem, error: DgenError, resolved: Resolved) -> None:
        """A line that can't be run: told, and a failed record, under the line's id where that is known."""
        self._tell(f"line {line.number}: {error.message}", error.hint)
        build = self._failed(line, error, resolved)
        self._writer.put(partial(self._record, line, build), line.number, failed=True)

    def _failed(
        self, line: Item | Problem, error: DgenError, resolved: Resolved, *, prompt_tokens: int = 0
    ) -> Callable[[], Record]:
        refusal = self._generator.refusal
        return partial(refusal, error, resolved, request_id=str(line.number), prompt_tokens=prompt_tokens)

    def _record(self, line: Item | Problem, build: Callable[[], Record]) -> Record:
        """The record with what a batch adds to it; the long list of log-probabilities stays last."""
        record = build()
        logprobs = record.pop("logprobs")
        record.update(id=line.id, index=line.number - 1)
        request_hash = line.request_hash if isinstance(line, Item) else None
        record = {**record, "request_hash": request_hash, "run_seed": self._run_seed, "logprobs": logprobs}
        return envelope.wrap(record) if line.envelope else record


class _Feed:
    """Jobs on demand; its end may be for now, and it can be asked again."""

    def __init__(self, next_job: Callable[[], Job | None]) -> None:
        self._next_job = next_job

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> Job:
        job = self._next_job()
        if job is None:
            raise StopIteration
        return job
