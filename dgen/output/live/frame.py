"""One denoising step as rows of styled text, each no wider than the terminal.

Knows tokens' bytes, masks and entropies; knows neither escape sequences nor when to draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache

from dgen.output.live.cells import clusters, joins, text_width, visible, width
from dgen.output.text import Vocabulary

UNKNOWN_MARK = "·"
BELIEVED_ENTROPY = math.log(2)
"""Nats up to which a draft is shown: the likeliest token has at least exp(-entropy), here one half."""


class Style(IntEnum):
    """How sure a position is."""

    ACCEPTED = 0
    NEW = 1  # accepted, and was not in the frame before
    DRAFT = 2  # the argmax alone
    UNKNOWN = 3


Span = tuple[str, Style]
Row = list[Span]


class Texts:
    """What each token id looks like in a canvas; remembers what it has worked out."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, str | None] = {}

    def of(self, ids: Sequence[int], styles: Sequence[Style]) -> list[Span]:
        """The visible text of each position with its style; special tokens are empty.

        Neighbours that are a character only together are one span, in the style of the least sure of them.
        """
        known = self._known
        spans: list[Span] = []
        at = 0
        while at < len(ids):
            style = styles[at]
            text = UNKNOWN_MARK if style is Style.UNKNOWN else known.get(ids[at], "")
            if text == "" and ids[at] not in known:
                text = self._learn(ids[at])
            if text is not None:
                spans.append((text, style))
                at += 1
                continue
            end = at
            while end < len(ids) and styles[end] is not Style.UNKNOWN and self._learn(ids[end]) is None:
                end += 1
            data = b"".join(map(self._vocabulary.piece, ids[at:end]))
            spans.append((visible(data.decode(errors="replace")), max(styles[at:end])))
            at = end
        return spans

    def _learn(self, token_id: int) -> str | None:
        """The token's text; None for bytes that are no text by themselves."""
        if token_id not in self._known:
            try:
                text = visible(self._vocabulary.piece(token_id).decode())
            except UnicodeDecodeError:
                text = None
            self._known[token_id] = text
        return self._known[token_id]


def styles_of(accepted: Sequence[bool], entropy: Sequence[float], before: Sequence[bool]) -> list[Style]:
    """The style of each position; `before` is the acceptance mask of the frame before, empty for none."""
    known = before or (False,) * len(accepted)
    return [
        (Style.ACCEPTED if was else Style.NEW)
        if now
        else (Style.DRAFT if nats <= BELIEVED_ENTROPY else Style.UNKNOWN)
        for now, nats, was in zip(accepted, entropy, known, strict=True)
    ]


def rows_of(spans: Iterable[Span], columns: int) -> list[Row]:
    """Lay spans out in rows of at most `columns` cells, as a terminal wraps: at the character that no longer fits."""
    rows: list[Row] = [[]]
    used = 0
    for text, style in _whole_clusters(spans):
        cells = _cells(text)
        if cells is not None and used + cells <= columns:
            rows[-1].append((text, style))
            used += cells
            continue
        for number, line in enumerate(text.split("\n")):
            if number:
                rows.append([])
                used = 0
            used = _fill(rows, line, style, used, columns)
    return rows


@lru_cache(maxsize=1 << 14)
def _cells(text: str) -> int | None:
    """Width of a text; None for one of several lines."""
    return None if "\n" in text else text_width(text)


def _fill(rows: list[Row], line: str, style: Style, used: int, columns: int) -> int:
    part = ""
    for cluster in clusters(line):
        cells = width(cluster)
        if used + cells > columns:
            rows[-1].append((part, style))
            rows.append([])
            part, used = "", 0
        if cells <= columns:  # else not even a row of its own would hold it
            part += cluster
            used += cells
    if part:
        rows[-1].append((part, style))
    return used


def _whole_clusters(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, with marks and joined characters moved to the span whose last character they belong to."""
    held: Span | None = None
    for text, style in spans:
        if not text:
            continue
        if held is None:
            held = (text, style)
        elif not joins(held[0][-1], text[0]):
            yield held
            held = (text, style)
        else:
            joined = list(clusters(held[0] + text))
            # The first cluster that reaches beyond the held text is the one that both share.
            size = cut = 0
            while size < len(held[0]):
                size += len(joined[cut])
                cut += 1
            head, rest = "".join(joined[:cut]), "".join(joined[cut:])
            if rest:
                yield head, held[1]
            held = (rest, style) if rest else (head, held[1])
    if held is not None:
        yield held


def shortened(parts: Sequence[str], columns: int, *, joint: str = " · ") -> str:
    """As many of the parts, joined, as fit; of the first at least what fits."""
    line = ""
    for part in parts:
        longer = f"{line}{joint}{part}" if line else part
        if text_width(longer) > columns:
            break
        line = longer
    return line or parts[0][:columns]
