"""What a batch reads, opened and checked as far as can be before anything is loaded."""

from __future__ import annotations

import os
import re

from dgen.batch.item import Reader
from dgen.batch.source import Entry, FileSource, Problem, Shard, StreamSource, is_stream
from dgen.cli.progress import Progress
from dgen.cli.sink import Sink
from dgen.cli.values import count_of
from dgen.errors import UsageError


def shard_of(text: str | None) -> Shard:
    """Reads `2/4`: the second of four.

    Raises:
        UsageError: anything else.
    """
    if text is None:
        return Shard()
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(
            f"--shard must be like 2/4, not '{text}'", hint="1/4 is the first of four shards, 4/4 the last."
        )
    return Shard(int(match[1]), int(match[2]))


def open_input(
    sink: Sink, path: str, reader: Reader, shard: Shard
) -> tuple[FileSource | StreamSource, dict[str, Entry] | None]:
    """The input, and what is in it; None for a stream, which can't be known before.

    Raises:
        UsageError: it can't be used, or there is nothing in it.
    """
    if is_stream(path):
        stream = StreamSource(_descriptor(path), reader, shard)
        check_not_empty(stream, path)
        return stream, None
    file = FileSource(path, reader, shard)
    with Progress(sink) as progress:
        progress.update("checking the input")
        return file, _checked(file, sink, progress, path)


def check_not_empty(source: FileSource | StreamSource, path: str) -> None:
    """Raises UsageError for a stream that has ended without a line; a file's check refuses one without."""
    if isinstance(source, StreamSource) and source.is_empty():
        where = "on stdin" if path == "-" else f"in '{path}'"
        raise UsageError(
            f"there is no prompt {where}",
            hint='Write {"prompt": "..."} a line, or see what became of the command that does.',
        )


def _descriptor(path: str) -> int:
    try:
        if path == "-":
            os.fstat(0)
            return 0
        return os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"can't read the input '{path}': {error.strerror}", hint="Check the path.") from None


def _checked(source: FileSource, sink: Sink, progress: Progress, path: str) -> dict[str, Entry]:
    """The input's entries, if every line is good; each bad one is told, and each hint once."""
    bad = 0

    def tell(problem: Problem) -> None:
        nonlocal bad
        bad += 1
        progress.pause()
        hint = sink.hint_once(problem.hint)
        sink.error(UsageError(f"line {problem.number}: {problem.reason}", hint=hint))

    entries = source.check(tell)
    if bad:
        raise UsageError(
            f"{count_of(bad, 'line')} of '{path}' can't be used; nothing was run",
            hint="Correct or remove what is named above.",
        )
    return entries
