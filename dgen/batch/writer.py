"""Turns finished requests into lines and writes them, beside the engine rather than between its steps.

One thread, first in, first out: building a record with log-probabilities and waiting for the disk cost the card
nothing. A failure to write is raised by the next call here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType

from dgen.batch.results import Results
from dgen.output.records import Record, dumps

_AHEAD = 64  # finished requests that may wait to be written


class Writer:
    """Context manager around a run: leaving it waits for what is still to be written."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._queue: queue.Queue[tuple[Callable[[], Record], int] | None] = queue.Queue(_AHEAD)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="dgen-writer", daemon=True)

    def put(self, build: Callable[[], Record], number: int) -> None:
        """Write the record that `build` makes, of input line `number`.

        Raises:
            OutputError, BrokenPipeError: an earlier one could not be written.
        """
        self.check()
        self._queue.put((build, number))

    def check(self) -> None:
        """Raises what went wrong in writing, if anything did."""
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
        if value is None:
            self.check()

    def _work(self) -> None:
        while (waiting := self._queue.get()) is not None:
            if self._failure is not None:
                continue  # emptied, so that nobody waits for room
            build, number = waiting
            try:
                self._results.append(dumps(build()).encode(), number)
            except BaseException as error:
                self._failure = error
