"""Text in terminal cells: what is safe to show, what belongs together, and how wide it is.

Widths of single characters are rich's; sequences (joined emoji, flags, combining marks) are ruled here, since they
reach over tokens. A terminal that disagrees about a sequence spoils one row at most: rows never wrap.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from rich.cells import get_character_cell_size

_JOINER, _TEXT_STYLE, _EMOJI_STYLE, _KEYCAP = "\u200d", "\ufe0e", "\ufe0f", "\u20e3"
# They would turn the order of a whole row around.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_TAB = "    "


def visible(text: str) -> str:
    """The text with what a terminal would obey as visible escapes; newlines stay, tabs become spaces."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if char == "\n" or char.isprintable():
        return char
    if char == "\t":
        return _TAB
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cs", "Zl", "Zp") or char in _BIDI:
        return f"\\x{ord(char):02x}" if char < "\u0100" else f"\\u{ord(char):04x}"
    return char


def clusters(text: str) -> Iterator[str]:
    """The text in pieces that share cells: a character with the marks, joiners and modifiers that follow it."""
    begin = 0
    for at in range(1, len(text)):
        # Of a row of flag letters each two are one flag.
        paired = at - begin > 1 and _is_flag(text[at])
        if paired or not joins(text[at - 1], text[at]):
            yield text[begin:at]
            begin = at
    if text:
        yield text[begin:]


def joins(before: str, char: str) -> bool:
    """Whether `char` shares its cells with `before`, the character in front of it."""
    if char < "\u0300":
        return False
    return (
        char in (_JOINER, _TEXT_STYLE, _EMOJI_STYLE, _KEYCAP)
        or before == _JOINER
        or unicodedata.category(char) in ("Mn", "Me", "Mc")
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags of subdivision flags
        or (_is_flag(char) and _is_flag(before))
    ) and before != "\n"


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def width(cluster: str) -> int:
    """Cells of one cluster: 0 to 2."""
    if len(cluster) == 1:
        return get_character_cell_size(cluster)
    if _EMOJI_STYLE in cluster or (_is_flag(cluster[0]) and _is_flag(cluster[1])):
        return 2
    return min(2, max(map(get_character_cell_size, cluster)))


def text_width(text: str) -> int:
    """Cells of a text without newlines."""
    return len(text) if text.isascii() else sum(map(width, clusters(text)))
