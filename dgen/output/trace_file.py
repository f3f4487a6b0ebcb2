"""The bytes of a trace: a file, plain or by gzip, or stdin. What gzip was cut off is read as far as it goes."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

from dgen.errors import UsageError

STDIN = "-"
_GZIP = b"\x1f\x8b"
_MOST_BYTES = 1 << 31  # far beyond any run; keeps a hostile archive from filling all memory


def read_bytes(path: str) -> bytes:
    """The contents of the file at `path`, or of stdin, unpacked.

    Raises:
        UsageError: it can't be read, or unpacked.
    """
    data = _stdin() if path == STDIN else _file(path)
    return _unpacked(data, path) if data.startswith(_GZIP) else data


def _file(path: str) -> bytes:
    try:
        return Path(os.path.expanduser(path)).read_bytes()
    except OSError as error:
        raise UsageError(
            f"can't read the trace '{path}': {error.strerror}", hint="Check the path; - reads stdin."
        ) from None


def _stdin() -> bytes:
    if sys.stdin is None or os.isatty(0):
        where = "closed" if sys.stdin is None else "a terminal"
        raise UsageError(
            f"stdin is {where}, not a trace", hint="dgen trace show - <run.jsonl, or name the file."
        )
    try:
        with open(0, "rb", closefd=False) as stdin:
            return stdin.read()
    except OSError as error:
        raise UsageError(f"can't read stdin: {error.strerror}", hint="Name the trace's file.") from None


def _unpacked(data: bytes, name: str) -> bytes:
    """All members, one behind the other; of one that breaks off, what it has."""
    parts: list[bytes] = []
    room = _MOST_BYTES
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(data, room))
        except zlib.error:
            raise UsageError(
                f"'{name}' is a damaged gzip file", hint="Unpack it with gzip -dc to see more."
            ) from None
        room -= len(parts[-1])
        if room <= 0:
            raise UsageError(f"'{name}' unpacks to more than 2 GB", hint="No run writes such a trace.")
        data = member.unused_data
    return b"".join(parts)
