"""Held-out questions for facts, each with its right answer and wrong ones of the same sort.

Knows text and a random generator. The wrong answers end as answers to questions of the same sort end: a capital that is
another country's, a colour that is another thing's.
"""

import random
from dataclasses import dataclass

from builtin_recipe.ask import Ask
from builtin_recipe.corpus import World

ALTERNATIVES = 4


@dataclass(frozen=True, slots=True)
class Riddle:
    """A question, the text of its answer with a gap, and what may go into it; the first choice is right."""

    question: str
    answer: str
    choices: tuple[str, ...]


def _split(ask: Ask) -> tuple[str, str]:
    at = ask.answer.index(ask.pivot) + len(ask.pivot)
    return ask.answer[:at], ask.answer[at:].removesuffix(".")


def _sort(ask: Ask) -> tuple[str, ...]:
    """The pivot and the first two words of what the question is about: `the colour`, `a baby`."""
    return (ask.pivot, *ask.thought.partition(" about ")[2].split()[:2])


class Riddles:
    """Draws questions with alternatives, from the held-out side of the split."""

    def __init__(self) -> None:
        self._world = World()
        self._asks = {ask.answer: ask for ask in self._world.asks["facts"]}

    def draw(self, rng: random.Random) -> Riddle:
        """A held-out question with ALTERNATIVES choices."""
        while True:
            exchange = self._world.question("facts", rng, held=True).exchange
            ask = self._asks[exchange.answer]
            before, right = _split(ask)
            for same in (_sort, lambda ask: ask.pivot):
                others = {_split(a)[1] for a in self._asks.values() if same(a) == same(ask)} - {right}
                wrong = [w for w in sorted(others) if f"{before}{w}." not in self._asks]
                if len(wrong) >= ALTERNATIVES - 1:
                    chosen = rng.sample(wrong, ALTERNATIVES - 1)
                    return Riddle(exchange.question, f"{before}{{{{}}}}.", (right, *chosen))
