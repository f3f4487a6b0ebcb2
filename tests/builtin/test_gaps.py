"""Texts with gaps and riddles: drawn from the corpus alone, and judged by its grammar."""

from __future__ import annotations

import random

import pytest
from builtin_recipe import stories
from builtin_recipe.alternatives import ALTERNATIVES, Riddles
from builtin_recipe.ask import is_held
from builtin_recipe.gaps import KINDS, Corpus, is_any_story

CORPUS = Corpus()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_with_gaps_is_whole_again_with_what_went(kind):
    rng = random.Random(1)
    for gaps in (1, 2, 3):
        drawn = CORPUS.draw(rng, gaps=gaps, kind=kind)
        whole = drawn.pieces[0] + "".join(a + b for a, b in zip(drawn.gone, drawn.pieces[1:], strict=True))
        assert whole == drawn.text
        assert CORPUS.holds(whole)
        assert 1 <= len(drawn.gone) <= gaps
        assert all(drawn.gone)


@pytest.mark.parametrize(
    "text",
    ["The capital of France is Rome.", "7 plus 3 is 12.", "The capital of France is Paris", "", "1, 2, 4."],
)
def test_what_the_grammar_cannot_write_is_wrong(text):
    assert not CORPUS.holds(text)


def test_a_story_is_right_for_any_animal_and_wrong_with_a_name_changed():
    rng = random.Random(3)
    for shape in stories.SHAPES:
        text = stories.tell(stories.Wish("elephant", "sleepy", shape), rng)
        assert is_any_story(text)
        name = text.split(" named ")[1].split()[0]
        assert not is_any_story(text.replace(name, "Nobody"))
        head, _, tail = text.rpartition(name)
        assert not is_any_story(f"{head}Someone{tail}")


def test_a_riddle_is_held_out_and_has_one_right_choice():
    rng, riddles = random.Random(5), Riddles()
    for _ in range(60):
        riddle = riddles.draw(rng)
        assert is_held(riddle.question.strip())
        assert len(set(riddle.choices)) == ALTERNATIVES
        texts = [riddle.answer.replace("{{}}", choice) for choice in riddle.choices]
        assert [CORPUS.holds(text) for text in texts] == [True] + [False] * (ALTERNATIVES - 1)
