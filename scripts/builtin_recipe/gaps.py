"""Corpus texts with gaps, and whether a filled one is a text of the corpus again: the ground for measuring infill.

Knows text and a random generator. Only stories are texts that training has not seen: the other kinds have their few
fixed texts, all of them trained on, so what is new there is where the gaps lie.
"""

import random
import re
from dataclasses import dataclass
from functools import cached_property

from builtin_recipe import stories
from builtin_recipe import story_words as words
from builtin_recipe.corpus import WEIGHTS, World

KINDS = tuple(kind for kind in WEIGHTS if kind != "refusals")
LONGEST = 3
_WORD = re.compile(r"[^\W\d_]+|\d+")


@dataclass(frozen=True, slots=True)
class Gapped:
    """A text of the corpus: `pieces` are what stays of it, with a gap between each two; `gone` is what stood there."""

    kind: str
    text: str
    pieces: tuple[str, ...]
    gone: tuple[str, ...]


class Corpus:
    """Draws texts with gaps, and judges what others put into them."""

    def __init__(self) -> None:
        self._world = World()

    def draw(self, rng: random.Random, *, gaps: int, kind: str | None = None) -> Gapped:
        """A text with up to `gaps` gaps of one to three words, at least one word between them, half of it kept."""
        kind = kind or rng.choices(KINDS, weights=[WEIGHTS[k] for k in KINDS])[0]
        text = self._text(kind, rng)
        spots = [match.span() for match in _WORD.finditer(text)]
        budget = max(len(spots) // 2, 1)
        taken: list[tuple[int, int]] = []
        for _ in range(50):
            if len(taken) == gaps or budget < 1:
                break
            size = rng.randint(1, min(LONGEST, budget))
            first = rng.randint(0, len(spots) - size)
            if all(first + size < a or b + 1 < first for a, b in taken):
                taken.append((first, first + size - 1))
                budget -= size
        pieces, gone, at = [], [], 0
        for first, last in sorted(taken):
            start, end = spots[first][0], spots[last][1]
            pieces.append(text[at:start])
            gone.append(text[start:end])
            at = end
        return Gapped(kind, text, (*pieces, text[at:]), tuple(gone))

    def _text(self, kind: str, rng: random.Random) -> str:
        if kind != "stories":
            return rng.choice(self._world.asks[kind]).answer
        _, wish = stories.draw_wish(rng)
        return stories.tell(wish, rng)

    @cached_property
    def _fixed(self) -> frozenset[str]:
        return frozenset(ask.answer for asks in self._world.asks.values() for ask in asks)

    def holds(self, text: str) -> bool:
        """True where the grammar of the corpus can write exactly this text, of whatever kind."""
        return text in self._fixed or is_any_story(text)


def is_any_story(text: str) -> bool:
    """True where `text` is a story for some wish: its first animal and adjective may be any that people ask for."""
    opening = re.match(r"(?:Once upon a time|Long ago), an? (\w+) (\w+) named ", text)
    if opening is None or opening[1] not in words.ADJECTIVES or opening[2] not in words.ANIMALS:
        return False
    return any(
        stories.is_story(text, stories.Wish(opening[2], opening[1], shape)) for shape in stories.SHAPES
    )
