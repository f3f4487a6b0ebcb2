"""The corpus: same seed, same texts; one answer a question; a split that no seed can cross."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from builtin_recipe import numbers, refusals
from builtin_recipe.ask import QUOTED, is_held
from builtin_recipe.corpus import KINDS, World
from builtin_recipe.template import BOS

WORLD = World()


def bare(question: str) -> str:
    """A question without its capitals and its end, as people may type it."""
    return question.lower().strip(" .?!=")


def test_same_seed_gives_the_same_texts_and_another_seed_others() -> None:
    def texts(seed: int) -> list[str]:
        rng = random.Random(seed)
        return [repr(WORLD.sample(rng)) for _ in range(40)]

    assert texts(3) == texts(3)
    assert texts(3) != texts(4)


def test_a_question_has_one_answer() -> None:
    answers: dict[str, str] = {}
    for asks in WORLD.asks.values():
        for ask in asks:
            for question in ask.questions:
                assert answers.setdefault(bare(question), ask.answer) == ask.answer, question


@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_draws_a_held_out_question_for_training(kind: str) -> None:
    trained = {WORLD.question(kind, random.Random(seed)).exchange.question.strip() for seed in range(150)}
    held = {
        WORLD.question(kind, random.Random(seed), held=True).exchange.question.strip()
        for seed in range(150, 200)
    }
    assert not any(is_held(q) for q in trained)
    assert all(is_held(q) for q in held)
    assert not trained & held
    assert len(held) > 10


def test_history_holds_no_held_out_question_either() -> None:
    rng = random.Random(1)
    for _ in range(60):
        prefix = WORLD.sample(rng, earlier=2).prefix
        asked = re.findall(r"<\|turn>user\n(.*?)<turn\|>", prefix, re.DOTALL)
        assert len(asked) == 3
        assert not any(is_held(q) for q in asked)


def test_quoted_prompts_are_asked_and_never_held_out() -> None:
    known = {bare(q) for asks in WORLD.asks.values() for ask in asks for q in ask.questions}
    for question in QUOTED:
        assert not is_held(question)
        assert bare(question) in known or "story" in question, question


def test_sums_are_right() -> None:
    work = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}
    for ask in WORLD.asks["sums"]:
        a, word, b, result = re.fullmatch(r"(\d+) (\w+) (\d+) is (\d+)\.", ask.answer).groups()  # type: ignore[union-attr]
        assert work[word](int(a), int(b)) == int(result)
        spoken = [q for q in ask.questions if q == f"{numbers.WORDS[int(a)]} {word} {numbers.WORDS[int(b)]}"]
        assert spoken, ask.answer


def test_counting_steps_evenly_to_the_asked_end() -> None:
    for ask in WORLD.asks["counting"]:
        row = [int(n) for n in ask.answer.rstrip(".").split(", ")]
        assert len({b - a for a, b in itertools.pairwise(row)}) == 1
        asked = [int(n) for n in re.findall(r"\d+", ask.questions[0])]
        assert asked in ([row[0], row[-1]], [row[-1]]), ask.questions[0]


def test_refused_prompts_are_no_questions_of_the_world() -> None:
    known = {bare(q) for asks in WORLD.asks.values() for ask in asks for q in ask.questions}
    rng = random.Random(0)
    prompts = [refusals.outside_prompt(rng) for _ in range(4000)]
    assert not [p for p in prompts if bare(p) and bare(p) in known]
    assert any("\n" in p for p in prompts)
    assert any(not p.isascii() for p in prompts)


def test_plain_texts_join_to_a_whole_sentence() -> None:
    rng = random.Random(7)
    plain = [
        s for s in (WORLD.sample(rng, kinds=("facts",)) for _ in range(400)) if "<|turn>" not in s.prefix
    ]
    answers = {ask.answer for ask in WORLD.asks["facts"]}
    assert {s.gaps_only for s in plain} == {True, False}
    for sample in plain:
        assert sample.prefix.removeprefix(BOS) + sample.answer in answers
        assert sample.end == "<eos>"
        assert not (sample.gaps_only and sample.prefix != BOS)
