"""The output file: one writer, whole records, nothing lost that was finished.

Holds the system's lock while open; a record is in the file, synced, when `append` returns. What a killed writer
left half-written goes when the file is next opened. Rewriting goes through a new file that takes the old one's
place at once. An output that is no regular file (a pipe, a device) is only ever written to.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from dgen.batch.extents import Layout, pack, scan
from dgen.batch.places import copy_of, descriptor_of, lock, new_beside, open_output, sync_folder
from dgen.errors import OutputError, UsageError

Judge = Callable[[bytes], int | None]
"""From a record's line to the number by which it sorts; None drops it. Raises NoRecord for anything else."""
_DROPPED = -1


class NoRecord(UsageError):
    """A line that no batch has written."""


class Results:
    """An output file, locked until it is closed; a context manager that closes it.

    Args:
        path: `-` is stdout, /dev/fd/N a descriptor; a name in .gz is compressed.
        overwrite: begin anew where the file holds something.

    Raises:
        UsageError: no such folder, a folder itself, or a descriptor that can't be written to.
        OutputError: another process writes to it, or the system refuses.
    """

    def __init__(self, path: str, *, overwrite: bool = False) -> None:
        self.path = path
        number = descriptor_of(path)
        # A rename would put a file in the place of a link.
        self._real = os.path.realpath(os.path.expanduser(path))
        self._compressed = path.endswith(".gz")
        try:
            self._descriptor = open_output(self._real) if number is None else copy_of(number, path)
        except (IsADirectoryError, FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"can't write to '{path}': {error.strerror}", hint="Give a file in a folder that exists."
            ) from None
        except BlockingIOError:
            raise OutputError(
                f"another process is writing to '{path}'",
                hint="Wait for it, or give another --output.",
            ) from None
        except OSError as error:
            raise self._failure(error) from None
        self.resumable = number is None and stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._offsets, self._sizes, self._numbers = array("Q"), array("Q"), array("q")
        self._end = 0
        self._anew = self.resumable and overwrite

    def fileno(self) -> int:
        """The open file's descriptor."""
        return self._descriptor

    def begin(self) -> None:
        """Let go of what is to be overwritten: not before everything else that can fail has not."""
        if self._anew:
            os.ftruncate(self._descriptor, 0)

    def settle(self, judge: Judge, *, may_be_torn: Callable[[bytes, bool], bool]) -> int:
        """Take up what the file holds: repair its end, drop what `judge` drops; returns how many records stay.

        A last record that lacks nothing but its end is whole, if `judge` can read it.

        Args:
            judge: called once with each record, in the file's order.
            may_be_torn: from the bytes behind the last whole record, and whether there is one, to whether they may
                be the start of one; if not, the file is somebody else's.

        Raises:
            UsageError: the file holds something else, or whatever `judge` raises; the file is as it was.
            OutputError: the file can't be changed.
        """
        if not self.resumable or self._anew:
            return 0
        layout, numbers = Layout(), array("q")
        try:
            with self._reader() as file:
                for extent in scan(file, layout, compressed=self._compressed):
                    number = judge(extent.line)
                    numbers.append(_DROPPED if number is None else number)
                    if number is not None:
                        self._keep(extent.offset, extent.size, number)
            rest = _judged(judge, layout.rest)
            if layout.rest and rest is None and not may_be_torn(layout.rest, bool(numbers)):
                raise ValueError("it does not end with a record")
        except ValueError as error:
            raise UsageError(
                f"'{self.path}' is no output of a batch: {error}",
                hint="Give another --output, or --overwrite to lose what is there.",
            ) from None
        try:
            if _DROPPED in numbers or layout.uneven:
                self._replace(self._kept(numbers))
            else:
                os.ftruncate(self._descriptor, layout.end)
                self._end = layout.end
            if rest is not None:
                self.append(layout.rest, rest)
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from None
        return len(self._numbers)

    def append(self, line: bytes, number: int) -> None:
        """Write one record; when this returns, neither a kill nor a power cut takes it.

        Raises:
            OutputError: the disk is full, say; the file then ends with the record before.
            BrokenPipeError: the reader of a pipe is gone.
        """
        data = pack(line, compressed=self._compressed)
        try:
            _write_all(self._descriptor, data)
            if self.resumable:
                os.fsync(self._descriptor)
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.resumable:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._end)
            raise self._failure(error) from None
        self._keep(self._end, len(data), number)
        self._end += len(data)

    def sort(self) -> None:
        """Put the records into the order of their numbers, unless they are."""
        order = sorted(range(len(self._numbers)), key=self._numbers.__getitem__)
        if not self.resumable or order == list(range(len(order))):
            return
        try:
            with self._reader() as file:
                self._replace(self._raw(file, order))
        except OSError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Let go of the file and its lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, offset: int, size: int, number: int) -> None:
        self._offsets.append(offset)
        self._sizes.append(size)
        self._numbers.append(number)

    def _reader(self) -> BinaryIO:
        return io.BufferedReader(io.FileIO(os.dup(self._descriptor)), 2**20)

    def _raw(self, file: BinaryIO, order: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        for at in order:
            file.seek(self._offsets[at])
            yield file.read(self._sizes[at]), self._numbers[at]

    def _kept(self, numbers: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        with self._reader() as file:
            found = scan(file, Layout(), compressed=self._compressed)
            for extent, number in zip(found, numbers, strict=True):
                if number != _DROPPED:
                    yield pack(extent.line, compressed=self._compressed), number

    def _replace(self, records: Iterator[tuple[bytes, int]]) -> None:
        """Write the records to a new file, and let it take this one's place, lock included."""
        offsets, sizes, numbers, end = array("Q"), array("Q"), array("q"), 0
        descriptor, temporary = new_beside(self._real)
        try:
            os.fchmod(descriptor, stat.S_IMODE(os.fstat(self._descriptor).st_mode))
            lock(descriptor)
            for data, number in records:
                _write_all(descriptor, data)
                offsets.append(end)
                sizes.append(len(data))
                numbers.append(number)
                end += len(data)
            os.fsync(descriptor)
            os.replace(temporary, self._real)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(self._real)
        os.close(self._descriptor)
        self._descriptor, self._end = descriptor, end
        self._offsets, self._sizes, self._numbers = offsets, sizes, numbers

    def _failure(self, error: OSError) -> OutputError:
        name = "standard output" if self.path == "-" else f"'{self.path}'"
        return OutputError(
            f"can't write to {name}: {error.strerror or error}",
            hint="Check where it goes to: free space, quota and permissions.",
        )


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _judged(judge: Judge, rest: bytes) -> int | None:
    """The number of what lies behind the last whole record, where it is one but for its end."""
    if not rest:
        return None
    try:
        return judge(rest)
    except NoRecord:
        return None
