"""Where each record lies in an output file, plain or gzip, and what a killed writer left behind it.

A plain record is a line; a compressed one is a gzip member of its own that holds a line, so that each is complete
once written. Blank lines, which an editor may have added, are passed over. Reads, decides nothing about records,
and changes no file.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

GZIP_LEVEL = 6
_MEMBER = b"\x1f\x8b\x08"  # how a gzip member begins
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a file that hold one record, and that record's line without its end."""

    offset: int
    size: int
    line: bytes


@dataclass(slots=True)
class Layout:
    """What a scan found beside whole records.

    `end` is where the last whole record ends, `rest` what lies behind it, as text. `uneven`: the file is gzip, and
    a member holds less or more than one line, as when another program has packed it anew.
    """

    end: int = 0
    rest: bytes = b""
    uneven: bool = False


def pack(line: bytes, *, compressed: bool) -> bytes:
    """A record's line as it is written, its end included."""
    data = line + b"\n"
    return gzip.compress(data, GZIP_LEVEL, mtime=0) if compressed else data


def scan(file: BinaryIO, layout: Layout, *, compressed: bool) -> Iterator[Extent]:
    """Every whole record from the file's start on; `layout` is filled by the end.

    Raises:
        ValueError: the file was not written as it should be.
    """
    file.seek(0)
    return _scan_members(file, layout) if compressed else _scan_lines(file, layout)


def _scan_lines(file: BinaryIO, layout: Layout) -> Iterator[Extent]:
    for data in file:
        if not data.endswith(b"\n"):
            layout.rest = data if data.strip() else b""
            return
        offset, layout.end = layout.end, layout.end + len(data)
        if data.strip():
            yield Extent(offset, len(data), data[:-1])


def _scan_members(file: BinaryIO, layout: Layout) -> Iterator[Extent]:
    pending = b""  # text of earlier members whose line has no end yet
    for start, size, text, whole in _members(file):
        text = pending + text
        *lines, pending = text.split(b"\n")
        layout.uneven = layout.uneven or (whole and (len(lines) != 1 or bool(pending)))
        if whole:
            layout.end = start + size
        elif lines:
            layout.uneven = True  # whole lines in a torn member: only writing them anew keeps them
        for line in lines:
            if line.strip():
                yield Extent(start, size, line)
    layout.rest = pending if pending.strip() else b""


def _members(file: BinaryIO) -> Iterator[tuple[int, int, bytes, bool]]:
    """Offset, size, text and completeness of each gzip member; an incomplete one is the last.

    Raises:
        ValueError: bytes that no writer leaves behind, killed or not.
    """
    start, buffer = 0, b""
    while buffer or (buffer := file.read(_CHUNK)):
        member, parts, used = zlib.decompressobj(wbits=31), [], 0
        while not member.eof:
            try:
                parts.append(member.decompress(buffer))
            except zlib.error:
                # A power cut may leave zeros where a member was to be.
                if (buffer.strip(b"\0") and not used) or _has_member_behind(file, start):
                    raise ValueError(f"it is no gzip file, or damaged, at byte {start}") from None
                yield start, used, b"".join(parts), False
                return
            used += len(buffer) - len(member.unused_data)
            buffer = member.unused_data if member.eof else file.read(_CHUNK)
            if not buffer and not member.eof:
                if _has_member_behind(file, start):
                    raise ValueError(f"it is damaged at byte {start}")
                yield start, used, b"".join(parts), False
                return
        yield start, used, b"".join(parts), True
        start += used


def _has_member_behind(file: BinaryIO, start: int) -> bool:
    """Whether a member begins behind the one at `start`: that one is then damaged, and not a write cut off."""
    file.seek(start + 1)
    seen = file.read(_CHUNK)
    while seen:
        if _MEMBER in seen:
            return True
        chunk = file.read(_CHUNK)
        seen = seen[-len(_MEMBER) + 1 :] + chunk if chunk else b""
    return False
