"""Bytes -> numbered lines -> JSON objects, whatever the bytes may be.

Lines end with a newline, with or without a carriage return; a byte order mark at the very start and blank lines
are passed over, and counted. What can't be read is a LineError with its reason, and leaves the next line alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dgen.prompt import kind_of

MAX_LINE_BYTES = 64 * 2**20
_BOM = b"\xef\xbb\xbf"
_LONGEST_REASON = 300
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class LineError(Exception):
    """Why a line can't be used, in a few words, and what to try, where that says more."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        self.hint = hint
        reason = " ".join(reason.split())
        super().__init__(reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + " ...")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input, counted from 1, without its end; `too_long` where the rest was dropped."""

    number: int
    data: bytes
    too_long: bool = False


class LineSplitter:
    """Cuts a stream of chunks into lines, in bounded memory."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._number = 0

    def push(self, chunk: bytes) -> list[Line]:
        """The lines that end in this chunk, blank ones left out."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for part in ended:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        return [line for line in lines if line is not None]

    def finish(self) -> list[Line]:
        """The last line, where it has no end of its own."""
        line = self._take() if self._parts else None
        return [] if line is None else [line]

    def _add(self, part: bytes) -> None:
        if part and self._size <= MAX_LINE_BYTES:
            self._parts.append(part)
            self._size += len(part)

    def _take(self) -> Line | None:
        self._number += 1
        data, too_long = b"".join(self._parts), self._size > MAX_LINE_BYTES
        self._parts, self._size = [], 0
        if self._number == 1:
            data = data.removeprefix(_BOM)
        if too_long:
            return Line(self._number, b"", too_long=True)
        return Line(self._number, data) if data.strip() else None


def split(chunks: Iterable[bytes]) -> Iterator[Line]:
    """All lines of the chunks that are not blank."""
    splitter = LineSplitter()
    for chunk in chunks:
        yield from splitter.push(chunk)
    yield from splitter.finish()


def parse(line: Line) -> dict[str, Any]:
    """The line's JSON object.

    Raises:
        LineError: bytes that are not UTF-8, no strict JSON (NaN and repeated names are none), a number beyond
            float64, half a character, nesting without end, or a value that is no object.
    """
    if line.too_long:
        raise LineError(f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
    try:
        text = line.data.decode()
    except UnicodeDecodeError as error:
        raise LineError(f"not UTF-8: byte {line.data[error.start]:#04x} at offset {error.start}") from None
    try:
        value = _DECODER.decode(text.strip(" \t\r"))
    except json.JSONDecodeError as error:
        message = _lower(error.msg).removesuffix(" at")
        raise LineError(f"not JSON: {message} at column {error.colno}") from None
    except RecursionError:
        raise LineError("not usable JSON: it is nested too deeply") from None
    except ValueError as error:
        raise LineError(f"not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise LineError(f"not a JSON object but {kind_of(value)}")
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise LineError("not valid text: half of a surrogate pair") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is beyond the largest number")
    return value


def _whole(digits: str) -> int:
    # The interpreter refuses thousands of digits in words of its own.
    if len(digits) > 400:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' is given twice")
    return found


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_distinct
)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
