"""Turns finished requests into lines and writes them, beside the engine rather than between its steps.

One thread, first in, first out: building a record with log-probabilities and waiting for the disk cost the card
nothing. It alone counts lines as done or failed, and only once they are in the file, so that no count says more than
the file holds. A record that can't be built becomes a failed one; a failure to write is raised by the next call here.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from dgen.batch.results import Results
from dgen.batch.tally import Tally
from dgen.errors import DgenError, as_ours
from dgen.output.records import Record, dumps

_AHEAD = 64  # finished requests that may wait to be written


@dataclass(frozen=True, slots=True)
class _Waiting:
    number: int
    failed: bool
    build: Callable[[], Record]
    instead: Callable[[DgenError], Record] | None


class Writer:
    """Context manager around a run: leaving it waits for what is still to be written.

    Args:
        results: where records go.
        tally: its `done` and `failed` are the writer's.
        tell: called, by whoever calls here, with what went wrong in building a record, and what to try.
    """

    def __init__(
        self, results: Results, tally: Tally, tell: Callable[[str, str], None] = lambda text, hint: None
    ) -> None:
        self._results, self._tally, self._tell = results, tally, tell
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(_AHEAD)
        self._broken: deque[tuple[int, DgenError]] = deque()  # filled by the thread, told by others
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="dgen-writer", daemon=True)

    def put(
        self,
        build: Callable[[], Record],
        number: int,
        *,
        failed: bool = False,
        instead: Callable[[DgenError], Record] | None = None,
    ) -> None:
        """Write a record.

        Args:
            build: makes it.
            number: of its input line.
            failed: count it as a failure.
            instead: makes a failed record where `build` raises; without it, that ends the run.

        Raises:
            OutputError, BrokenPipeError: an earlier one could not be written.
        """
        self.check()
        self._queue.put(_Waiting(number, failed, build, instead))

    def check(self) -> None:
        """Tell of records that could not be built; raises what went wrong in writing, if anything did."""
        self._tell_broken()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            return  # a second signal: what is half-written is repaired by the next run
        self._queue.put(None)
        self._thread.join()
        self._tell_broken()
        if value is None:
            self.check()

    def _tell_broken(self) -> None:
        while self._broken:
            number, error = self._broken.popleft()
            self._tell(f"line {number}: {error.message}", error.hint)

    def _work(self) -> None:
        while (waiting := self._queue.get()) is not None:
            if self._failure is not None:
                continue  # emptied, so that nobody waits for room
            try:
                self._write(waiting)
            except BaseException as error:
                self._failure = error

    def _write(self, waiting: _Waiting) -> None:
        failed = waiting.failed
        try:
            line = dumps(waiting.build())
        except Exception as error:
            if waiting.instead is None:
                raise
            cause, failed = as_ours(error, doing="writing the record"), True
            line = dumps(waiting.instead(cause))
            self._broken.append((waiting.number, cause))
        self._results.append(line.encode(), waiting.number)
        if failed:
            self._tally.failed += 1
        else:
            self._tally.done += 1
