"""Where the lines come from: a file, which is checked as a whole before anything runs, or a stream, as they come.

A file's lines are read twice, so that only ids and hashes are held; a stream's once. Both give what is meant
for this shard, and tell a line that can't be used with its reason.
"""

from __future__ import annotations

import gzip
import os
import select
import stat
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Protocol

from dgen.batch.item import Id, Item, Reader, identify
from dgen.batch.lines import Line, LineError, LineSplitter, split
from dgen.errors import UsageError

_CHUNK = 2**20
_PATIENCE = 0.1  # seconds between two looks at whether to stop


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that can't be used: its number, why, and what to try, where that says more.

    `id` and `envelope` are as of an Item, where they can be told and no other line's answer has that id.
    """

    number: int
    reason: str
    hint: str = ""
    id: Id | None = None
    envelope: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept of a checked line."""

    number: int
    request_hash: str


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th line, from the `index`-th on (1 to count): a matter of the line's number alone."""

    index: int = 1
    count: int = 1

    def holds(self, number: int) -> bool:
        """Whether the line belongs to this shard."""
        return (number - 1) % self.count == self.index - 1


class Source(Protocol):
    """Gives lines one by one."""

    total: int | None
    """Lines of this shard; None while that is unknown."""
    ended: bool

    def take(self, *, wait: bool) -> Item | Problem | None:
        """The next line; None at the end, when told to stop, or where none has come yet and `wait` is false."""

    def stop(self) -> None:
        """Give nothing more; safe in a signal handler."""


class FileSource:
    """A regular file of lines, gzip-compressed where its name ends in .gz.

    Args:
        path: as the user gave it.
        reader: reads each line.
        shard: which lines are ours.

    Raises:
        UsageError: the file can't be opened.
    """

    def __init__(self, path: str, reader: Reader, shard: Shard) -> None:
        self.total: int | None = None
        self.ended = False
        self._path, self._reader, self._shard = path, reader, shard
        self._lines: Iterator[Line] | None = None
        self._wanted: Callable[[Item], bool] = lambda item: True
        self._given = 0
        self._last = 0
        self._stopped = False
        try:
            # Held open: a file that is replaced meanwhile is none of ours.
            self._file = open(os.path.expanduser(path), "rb")  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                f"can't read the input '{path}': {error.strerror}", hint="Check the path; - reads stdin."
            ) from None

    def fileno(self) -> int:
        """The open file's descriptor."""
        return self._file.fileno()

    def check(self, tell: Callable[[Problem], None]) -> dict[str, Entry]:
        """Read all lines, those of other shards too; what each of our ids is, in the file's order.

        Args:
            tell: called with each line that can't be used, an id that an earlier line has included.

        Raises:
            UsageError: the file can't be read, is no lines of JSON at all, or has no line.
        """
        entries: dict[str, Entry] = {}
        numbers: dict[str, int] = {}
        for line in self._read():
            first_line, self._last = not self._last, line.number
            if first_line and line.data.lstrip().startswith(b"["):
                raise UsageError(
                    f"'{self._path}' is a JSON array, not a line of JSON a prompt",
                    hint=f"Convert it: jq -c '.[]' {self._path} > prompts.jsonl",
                )
            try:
                item = self._reader.read(line)
            except LineError as error:
                tell(Problem(line.number, str(error), error.hint))
                continue
            first = numbers.setdefault(item.key, line.number)
            if first != line.number:
                tell(Problem(line.number, f"the id {item.id!r} is that of line {first} already"))
            elif self._shard.holds(line.number):
                entries[item.key] = Entry(line.number, item.request_hash)
        if not self._last:
            raise UsageError(f"there is no prompt in '{self._path}'", hint='Write {"prompt": "..."} a line.')
        self.total = len(entries)
        return entries

    def begin(self, wanted: Callable[[Item], bool]) -> None:
        """Start giving, from the first line on, the lines that are `wanted`."""
        self._wanted = wanted
        self._lines = self._read()
        self.ended = False

    def find(self, number: int) -> Item | None:
        """The item of one line; begins anew."""
        self.begin(lambda item: item.number == number)
        found = self.take(wait=True)
        return found if isinstance(found, Item) else None

    def take(self, *, wait: bool) -> Item | Problem | None:
        """See `Source.take`; there is nothing to wait for."""
        del wait
        assert self._lines is not None, "take before begin"
        while not self._stopped:
            line = next(self._lines, None)
            if line is None or line.number > self._last:
                break
            if not self._shard.holds(line.number):
                continue
            try:
                item = self._reader.read(line)
            except LineError as error:
                return Problem(line.number, f"{error} (the input changed meanwhile)")
            if self._wanted(item):
                return item
        self.ended = True
        return None

    def stop(self) -> None:
        """See `Source.stop`."""
        self._stopped = True

    def _read(self) -> Iterator[Line]:
        try:
            self._file.seek(0)
            file = gzip.GzipFile(fileobj=self._file) if self._path.endswith(".gz") else self._file
            yield from split(iter(lambda: file.read(_CHUNK), b""))
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(
                f"can't read the input '{self._path}': {getattr(error, 'strerror', None) or error}",
                hint="Check the file.",
            ) from None


class StreamSource:
    """Lines from a descriptor, as they come; nothing is known of them before.

    Args:
        descriptor: where to read.
        reader, shard: as of a file.
    """

    def __init__(self, descriptor: int, reader: Reader, shard: Shard) -> None:
        self.total: int | None = None
        self.ended = False
        self._descriptor, self._reader, self._shard = descriptor, reader, shard
        self._wanted: Callable[[Item], bool] = lambda item: True
        self._splitter = LineSplitter()
        self._ready: deque[Line] = deque()
        self._numbers: dict[str, int] = {}
        self._done: Container[str] = ()
        self._had_line = False
        self._exhausted = False
        self._stopped = False

    def is_empty(self) -> bool:
        """Whether it has ended without a line; false as long as that can't be told without waiting."""
        if not (self._had_line or self._exhausted) and select.select([self._descriptor], [], [], 0)[0]:
            self._pull()
        return self._exhausted and not self._had_line

    def take(self, *, wait: bool) -> Item | Problem | None:
        """See `Source.take`."""
        while not self._stopped:
            while self._ready:
                found = self._use(self._ready.popleft())
                if found is not None:
                    return found
            if self._exhausted:
                break
            if select.select([self._descriptor], [], [], _PATIENCE if wait else 0)[0]:
                self._pull()
            elif not wait:
                return None
        self.ended = True
        return None

    def begin(self, wanted: Callable[[Item], bool], *, done: Container[str] = ()) -> None:
        """Give only the lines that are `wanted`, which may raise LineError; `done` are ids of the output."""
        self._wanted, self._done = wanted, done

    def stop(self) -> None:
        """See `Source.stop`."""
        self._stopped = True

    def _pull(self) -> None:
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except OSError as error:
            raise UsageError(f"can't read the input: {error.strerror}", hint="Check the input.") from None
        self._exhausted = not chunk
        lines = self._splitter.push(chunk) if chunk else self._splitter.finish()
        self._had_line = self._had_line or bool(lines)
        self._ready.extend(lines)

    def _use(self, line: Line) -> Item | Problem | None:
        if not self._shard.holds(line.number):
            return None
        try:
            item = self._reader.read(line)
        except LineError as error:
            return self._problem(line, error)
        try:
            first = self._numbers.setdefault(item.key, line.number)
            if first != line.number:
                raise LineError(f"the id {item.id!r} is that of line {first} already")
            return item if self._wanted(item) else None
        except LineError as error:
            return Problem(line.number, str(error), error.hint)

    def _problem(self, line: Line, error: LineError) -> Problem:
        id, envelope = identify(line)
        if str(id) in self._numbers or str(id) in self._done:
            # That answer is the other line's: nobody who looks it up is to find this failure.
            id, envelope = None, False
        return Problem(line.number, str(error), error.hint, id, envelope)


def is_stream(path: str) -> bool:
    """Whether the input can be read only once: stdin, or a pipe."""
    if path == "-":
        return True
    try:
        mode = os.stat(os.path.expanduser(path)).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)
