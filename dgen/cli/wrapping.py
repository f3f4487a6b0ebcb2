"""Lines of dgen's own words, wrapped between words where a terminal is too narrow; piped, a line stays a line."""

from __future__ import annotations

import os
import textwrap
from typing import TextIO

from dgen.cli.sink import is_terminal

_ROOM = 24
"""Cells that a text needs beside its head; where there are fewer, its further lines begin further left."""
_INDENT = "      "


def columns_of(stream: TextIO | None) -> int | None:
    """The terminal's width; None where the stream is none."""
    if stream is None or not is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def hanging(text: str, head: str, columns: int | None) -> list[str]:
    """The text behind its head, further lines under the text."""
    if columns is None or len(head) + len(text) <= columns:
        return [head + text]
    indent = " " * len(head) if columns - len(head) >= _ROOM else _INDENT
    return textwrap.wrap(
        text,
        max(columns, len(_INDENT) + 1),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head]
