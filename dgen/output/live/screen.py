"""A region of a terminal below the text written so far: drawn over itself, and gone without a trace.

Between frames the cursor stands where the text ended, so whoever writes next, and whoever is killed, leaves no gap.
Lines are made by scrolling (IND) before they are drawn on, so the scrollback holds text only. No mode outlives a
frame. The region is lower than the terminal, and no row of it wraps.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from dgen.output.live.cells import clusters, width
from dgen.output.live.frame import Row, Style

_SYNC, _END_SYNC = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show the frame at once
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_INDEX, _ERASE_LINE, _ERASE_BELOW = "\x1bD", "\x1b[K", "\x1b[J"
_RESET = "\x1b[0m"
_COLORED = {Style.ACCEPTED: "", Style.NEW: "\x1b[32m", Style.DRAFT: "\x1b[2m", Style.UNKNOWN: "\x1b[2m"}
# NO_COLOR asks for no colour; weight is none.
_COLORLESS = {**_COLORED, Style.NEW: "\x1b[1m"}
_FALLBACK = (80, 24)
_LEAST_COLUMNS, _LEAST_ROWS = 8, 2  # below, there is nothing to look at


class Screen:
    """Args: `stream` is a terminal that can move its cursor; `color` allows colours beside weights."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        self._stream = stream
        self._styles = _COLORED if color else _COLORLESS
        self._column = 0  # where the text ended, in cells from the line's beginning
        self._dirty = False  # a frame is on the screen
        self._shown: tuple[str, int, int] | None = None

    @property
    def room(self) -> tuple[int, int]:
        """Columns and rows that a frame may have at this moment; the text's last line stays in view."""
        columns, rows = _size(self._stream)
        return columns, max(1, rows - 1)

    def draw(self, rows: Sequence[Row], status: str) -> None:
        """Show the rows, and the status below, in place of the frame before; nothing where they are the same."""
        columns, most = self.room
        if columns < _LEAST_COLUMNS or most < _LEAST_ROWS:
            self.hide()
            return
        rows = [*rows[: most - 1], [(status, Style.DRAFT)]]
        # Erased from its beginning: behind a full row, the cursor stands on the row's last cell.
        *upper, last = map(self._encode, rows)
        body = "".join(f"{_ERASE_LINE}{row}\r\n" for row in upper) + _ERASE_BELOW + last
        if (body, columns, most) == self._shown:
            return
        parts = [_SYNC, _NO_WRAP]
        if self._column and self._column % columns == 0 and not self._dirty:
            # The text filled its line: let the cursor go to the next, as it will before the next character.
            parts.append(f"{_WRAP} \b{_NO_WRAP}")
        below = len(rows) - (0 if self._column else 1)
        if below:
            parts.append(f"{_INDEX * below}\x1b[{below}A")
        parts += [_SAVE, f"{_ERASE_LINE}\r\n" if self._column else "\r", body, _RESTORE, _WRAP, _END_SYNC]
        _write(self._stream, "".join(parts))
        self._dirty, self._shown = True, (body, columns, most)

    def hide(self) -> None:
        """Erase the frame; the cursor stands behind the text."""
        if self._dirty:
            # Some terminals take erasing from their first cell on for clearing the screen, and move what is erased
            # to the scrollback: begin behind a blank.
            _write(self._stream, f"{_RESET}{_SAVE} {_ERASE_BELOW}{_RESTORE}{_ERASE_LINE}{_WRAP}")
        self._dirty, self._shown = False, None

    def wrote(self, text: str) -> None:
        """Take note that others have written `text` on this terminal, behind what was there."""
        columns = _size(self._stream)[0]
        *lines, tail = text.split("\n")
        if lines:
            self._column = 0
        for cluster in clusters(tail):
            if cluster == "\t":
                self._column += 8 - self._column % 8
                continue
            cells = width(cluster)
            if self._column % columns + cells > columns:
                self._column += columns - self._column % columns  # a wide one leaves the last cell empty
            self._column += cells

    def _encode(self, row: Row) -> str:
        """Neighbours of one style share their escape sequences."""
        parts: list[str] = []
        current = ""
        for text, style in row:
            wanted = self._styles[style]
            if wanted != current:
                parts.append(f"{_RESET if current else ''}{wanted}")
                current = wanted
            parts.append(text)
        if current:
            parts.append(_RESET)
        return "".join(parts)


class Lines:
    """Frames below each other without any control sequence: for files, and terminals that can't move their cursor.

    Args: `stream` is where they go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before = ""
        self._open = False

    @property
    def room(self) -> tuple[int, int]:
        """No limit."""
        return sys.maxsize, sys.maxsize

    def draw(self, rows: Sequence[Row], status: str) -> None:
        """Append the status and the rows, where the rows are others than before."""
        text = "\n".join("".join(text for text, _ in row) for row in rows).rstrip()
        if text == self._before:
            return
        self._before = text
        _write(self._stream, f"{chr(10) if self._open else ''}[{status}]\n{text}\n")
        self._open = False

    def hide(self) -> None:
        """What is written stays."""

    def wrote(self, text: str) -> None:
        """Take note that others have written `text` in the same place."""
        self._open = not text.endswith("\n") if text else self._open


def _size(stream: TextIO) -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError):
        columns, rows = os.get_terminal_size(stream.fileno())
        if columns > 0 and rows > 0:
            return columns, rows
    return _FALLBACK


def _write(stream: TextIO, text: str) -> None:
    # In one piece; and a stream that went away takes no frames, which is no reason to stop.
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
