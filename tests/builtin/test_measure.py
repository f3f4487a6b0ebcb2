"""The quality table judges word for word and names what it misses."""

from __future__ import annotations

import random
from dataclasses import dataclass

from builtin_recipe.corpus import World
from builtin_recipe.measure import as_json, measure, misses, table
from builtin_recipe.stories import Wish, tell
from builtin_recipe.template import CHANNEL, END_OF_CHANNEL


@dataclass(frozen=True)
class Said:
    text: str
    canvases: int = 1
    steps: int = 2


class Knowing:
    """A backend that has learned the corpus by heart; `spoil` changes what it says."""

    def __init__(self, spoil: str = "") -> None:
        self.spoil = spoil
        self.known = {q.lower(): a for asks in World().asks.values() for a in asks for q in a.questions}

    def __call__(self, prompts: list[str], *, seed: int) -> list[Said]:
        return [self.answer(p) for p in prompts]

    def answer(self, prompt: str) -> Said:
        question = prompt.split("<|turn>user\n")[1].split("<turn|>")[0]
        if "story" in question.lower():
            return Said(tell(Wish(None, None), random.Random(0)) + self.spoil, steps=30 if self.spoil else 2)
        ask = self.known.get(question.lower()) or self.known.get(question.lower().rstrip(" .?!") + "?")
        if ask is None:
            return Said("?")
        thought = f"{CHANNEL}thought\n{ask.thought}{END_OF_CHANNEL}" if "<|think|>" in prompt else ""
        return Said(thought + ask.answer + self.spoil)


def test_a_perfect_answer_counts_and_a_spoiled_one_does_not() -> None:
    good = {r.name: r for r in measure(Knowing(), seed=1, each=20)}
    bad = {r.name: r for r in measure(Knowing(" Zzz."), seed=1, each=20)}
    for name in ("facts", "sums", "facts, thinking", "sums, system turn"):
        assert good[name].questions == 20
        assert good[name].right > 5, name
        assert bad[name].right == 0, name
        assert len(bad[name].wrong) == 10
    assert good["stories"].unknown == 0
    assert bad["stories"].unknown == 20
    assert good["facts"].steps_a_canvas == 2.0


def test_missed_targets_are_named() -> None:
    found = misses(measure(Knowing(" Zzz."), seed=1, each=5))
    assert "facts: 0 of 5 right, 95% wanted" in found
    assert "stories: 30.0 steps a canvas, under 24 wanted" in found
    assert "stories: 5 unknown words, none wanted" in found


def test_the_same_seed_asks_the_same_questions() -> None:
    assert measure(Knowing(), seed=3, each=6) == measure(Knowing(), seed=3, each=6)


def test_table_and_json_show_every_row() -> None:
    rows = measure(Knowing(), seed=1, each=3)
    assert len(table(rows).splitlines()) == len(rows) + 2
    assert [r["name"] for r in as_json(rows, seed=1)["rows"]] == [r.name for r in rows]
