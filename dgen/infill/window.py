"""Which part of a text is denoised at once, and where its given tokens stand in the canvas.

Knows token ids alone. A text that fits one canvas is one window. A longer one is filled from left to right, each window
a request of its own that begins shortly before a gap, so that every gap has its right side in the same canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgen.infill.template import USUAL_MOST, Gap


@dataclass(frozen=True, slots=True)
class Window:
    """Some gaps that are filled together.

    `prefix` are the ids before the canvas, `left` those in it before the first gap, `gaps` the numbers of the gaps,
    `between` the ids behind each of them (the last one's cut where the window ends), `end` the id that ends the text
    where the window reaches it. The text's last gap is `trailing` when nothing stands behind it: it has no length of
    its own, the model ends it.
    """

    prefix: tuple[int, ...]
    left: tuple[int, ...]
    gaps: tuple[int, ...]
    between: tuple[tuple[int, ...], ...]
    end: int | None
    trailing: bool

    def pins(self, lengths: Sequence[int]) -> dict[int, int]:
        """Canvas position -> id for these lengths of the gaps (a trailing one has none)."""
        pins = dict(enumerate(self.left))
        at = len(self.left)
        for length, ids in zip(lengths, self.between, strict=False):
            at += length
            pins.update({at + i: token_id for i, token_id in enumerate(ids)})
            at += len(ids)
        if self.end is not None and not self.trailing:
            pins[at] = self.end
        return pins

    def size(self, lengths: Sequence[int]) -> int:
        """Canvas positions up to the last pin."""
        given = len(self.left) + sum(map(len, self.between)) + sum(lengths)
        return given + (self.end is not None and not self.trailing)

    def spots(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Where each gap lies: first position and the one behind its last; a trailing gap is left out."""
        out, at = [], len(self.left)
        for length, ids in zip(lengths, self.between, strict=False):
            out.append((at, at + length))
            at += length + len(ids)
        return out


@dataclass(frozen=True, slots=True)
class Planner:
    """Chooses the next window of a text whose first gaps are filled.

    Args:
        base: ids of the prompt, before the text.
        pieces: ids of what is given.
        gaps: the gaps between.
        canvas_len: positions of a canvas.
        end: id that ends the text.
    """

    base: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]
    gaps: tuple[Gap, ...]
    canvas_len: int
    end: int

    @property
    def trailing(self) -> bool:
        """Whether the text ends in a gap."""
        return not self.pieces[-1]

    def most(self, gap: int) -> int:
        """The largest number of tokens that is planned for."""
        most = self.gaps[gap].most
        if most is not None:
            return most
        return self.canvas_len // 4 if self.trailing and gap == len(self.gaps) - 1 else USUAL_MOST

    def next(self, fills: Sequence[tuple[int, ...]]) -> Window:
        """The window of the first gap that has no filling in `fills`, and of those behind it that fit."""
        first = len(fills)
        before = list(self.pieces[0])
        for fill, piece in zip(fills, self.pieces[1:], strict=False):
            before += [*fill, *piece]
        rest = sum(self.most(g) + len(self.pieces[g + 1]) for g in range(first, len(self.gaps)))
        fits = len(before) + rest + 1 <= self.canvas_len
        start = 0 if fits else max(len(before) - self.canvas_len // 4, 0)
        last = len(self.gaps) - 1 if fits else self._last(first, len(before) - start)
        used = len(before) - start + self._span(first, last)
        right = self.pieces[last + 1]
        margin = min(len(right) + 1, max(self.canvas_len // 8, 1))
        room = -(-(used + margin) // self.canvas_len) * self.canvas_len - used
        closes = last == len(self.gaps) - 1 and len(right) < room
        return Window(
            prefix=(*self.base, *before[:start]),
            left=tuple(before[start:]),
            gaps=tuple(range(first, last + 1)),
            between=(*self.pieces[first + 1 : last + 1], right[:room]),
            end=self.end if closes else None,
            trailing=self.trailing and last == len(self.gaps) - 1,
        )

    def _span(self, first: int, last: int) -> int:
        """Tokens from the first gap to the end of the last one, all as long as they may be."""
        inner = sum(len(self.pieces[g]) for g in range(first + 1, last + 1))
        return inner + sum(self.most(g) for g in range(first, last + 1))

    def _last(self, first: int, used: int) -> int:
        """The last gap that fits the canvas of the first one with some of what follows it in view."""
        last = first
        while last + 1 < len(self.gaps):
            if used + self._span(first, last + 1) + self.canvas_len // 8 > self.canvas_len:
                break
            last += 1
        return last
