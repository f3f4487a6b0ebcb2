r"""A text with gaps: `{{4}}` is a gap of up to four tokens, `{{}}` one of open size, `\{{` two literal braces.

Knows text alone. A gap holds at least one token; what stands around it is never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dgen.errors import UsageError

USUAL_MOST = 8
"""Tokens that an inner gap of open size may take; one at the end of the text ends where the model ends it."""
LARGEST = 4096
_MARK = re.compile(r"\\\{\{|\{\{(?P<size>[^{}\n]*)\}\}|(?P<open>\{\{)")
_EXAMPLE = "For example: 'The capital of {{4}} is Paris.'"


@dataclass(frozen=True, slots=True)
class Gap:
    """How many tokens a gap may take; `most` is None where the size is left open."""

    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A text with gaps: `pieces` are what is given, one more than there are `gaps` between them."""

    pieces: tuple[str, ...]
    gaps: tuple[Gap, ...]

    def __post_init__(self) -> None:
        assert len(self.pieces) == len(self.gaps) + 1

    def filled(self, fills: tuple[str, ...]) -> str:
        """The whole text with these fillings."""
        return self.pieces[0] + "".join(
            fill + piece for fill, piece in zip(fills, self.pieces[1:], strict=True)
        )


def parse_template(text: str, *, example: str = _EXAMPLE) -> Template:
    """Read a text with gaps; `example` is shown to whoever gives one without.

    Raises:
        UsageError: no gap, a gap that is not closed, without a number or out of range, or two that touch.
    """
    pieces = [""]
    gaps: list[Gap] = []
    at = 0
    for mark in _MARK.finditer(text):
        pieces[-1] += text[at : mark.start()]
        at = mark.end()
        if mark["open"] is not None:
            where = _excerpt(text, mark.start())
            raise UsageError(
                f"the gap that begins at '{where}' is not closed",
                hint=r"Write {{}} or {{4}}; \{{ stands for two literal braces.",
            )
        if mark["size"] is None:
            pieces[-1] += "{{"
            continue
        if gaps and not pieces[-1]:
            raise UsageError("two gaps touch: nothing stands between them", hint="Write them as one gap.")
        gaps.append(_gap(mark["size"].strip()))
        pieces.append("")
    pieces[-1] += text[at:]
    if not gaps:
        raise UsageError("the text has no gap to fill", hint=example)
    return Template(tuple(pieces), tuple(gaps))


def check_voice(instruction: str | None, system: str | None) -> None:
    """Raises UsageError for a system text that has no instruction to stand before, or an instruction without text."""
    if system is not None and instruction is None:
        raise UsageError(
            "a system text needs an instruction", hint="Add --instruction, or leave --system out."
        )
    if instruction is not None and not instruction.strip():
        raise UsageError("the instruction is empty", hint="Give it some text, or leave --instruction out.")


def _gap(size: str) -> Gap:
    if not size:
        return Gap()
    most = int(size) if size.isascii() and size.isdigit() and len(size) < 10 else 0
    if not 1 <= most <= LARGEST:
        raise UsageError(
            f"a gap's size must be a whole number of tokens from 1 to {LARGEST}, not '{size}'",
            hint=r"{{4}} takes up to 4 tokens, {{}} leaves the size open; \{{ stands for two literal braces.",
        )
    return Gap(most=most)


def _excerpt(text: str, start: int) -> str:
    part = text[start : start + 24]
    return part + ("..." if start + 24 < len(text) else "")
