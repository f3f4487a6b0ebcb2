"""Probabilities of given answers: they sum to one, know the facts, and mean what the full score means."""

from __future__ import annotations

import math

import pytest
from tiny import tiny_checkpoint

import dgen
from dgen.choose import choose
from dgen.errors import DgenError, UsageError


@pytest.fixture(scope="module")
def builtin():
    return dgen.load("builtin", device="cpu", slots=8)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("choose") / "tiny", seed=0, canvas_length=8, window=8)
    return dgen.load(str(folder), device="cpu", slots=4)


CAPITALS = ("Lima", "Paris", "Copenhagen", "Rome")


@pytest.mark.parametrize("exact", [False, True])
def test_the_right_capital_is_chosen_of_names_of_several_tokens(builtin, exact):
    found = choose(
        builtin,
        CAPITALS,
        prompt="What is the capital of Denmark?",
        answer="The capital of Denmark is {{}}.",
        exact=exact,
        seed=1,
    )
    assert found.best == "Copenhagen"
    assert found.choices[0].probability > 0.95
    assert found.choices[0].tokens > 2
    assert 0.9 < found.mass <= 1


def test_an_answer_may_stand_alone_and_whole_answers_score_like_their_endings(builtin):
    endings = choose(builtin, ("black", "white"), answer="Coal is {{}}.", seed=1)
    whole = choose(builtin, ("Coal is black.", "Coal is white."), prompt="What colour is coal?", seed=1)
    assert endings.best == "black"
    assert whole.best == "Coal is black."


@pytest.mark.parametrize("exact", [False, True])
def test_probabilities_sum_to_one_and_follow_from_the_logprobs(tiny, exact):
    found = choose(tiny, ("a", "b", "a cat", "red fox"), prompt="a cat sat", exact=exact, seed=2)
    shares = [choice.probability for choice in found.choices]
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
    assert shares == sorted(shares, reverse=True)
    first, last = found.choices[0], found.choices[-1]
    assert math.log(first.probability / last.probability) == pytest.approx(first.logprob - last.logprob)
    assert found.mass == pytest.approx(math.fsum(math.exp(choice.logprob) for choice in found.choices))


def test_more_passes_average_over_more_noise(tiny):
    one, four = (choose(tiny, ("a", "b"), prompt="a cat", passes=p, seed=1) for p in (1, 4))
    assert (one.passes, four.passes) == (1, 4)
    assert one.choices != four.choices


def test_choices_that_part_at_their_only_token_score_the_same_in_full(tiny):
    # Behind one differing token each, only the end remains, which in full is read with that token in place.
    quick = choose(tiny, ("a", "b"), prompt="a cat", seed=1)
    full = choose(tiny, ("a", "b"), prompt="a cat", exact=True, seed=1)
    assert full.passes == 3 * quick.passes
    assert {choice.tokens for choice in full.choices} == {2}


def test_an_answer_that_goes_on_is_scored_without_its_end(builtin):
    options = {"prompt": "Count from 1 to 5.", "answer": "1, 2, {{}}", "seed": 1}
    ended, open_ended = (choose(builtin, ("3", "4"), goes_on=flag, **options) for flag in (False, True))
    assert open_ended.best == "3"
    assert ended.mass < 0.5 < open_ended.mass
    assert ended.choices[0].tokens == open_ended.choices[0].tokens + 1


@pytest.mark.parametrize("choices", [("a", "a cat"), ("a cat sat", "b", "a cat"), ("a", "b", "b cat", "c")])
def test_a_choice_that_goes_on_in_another_is_refused_unless_it_ends(tiny, choices):
    with pytest.raises(UsageError, match="is the beginning of"):
        choose(tiny, choices, prompt="x", goes_on=True, seed=1)
    found = choose(tiny, choices, prompt="x", goes_on=False, seed=1)
    assert {choice.text for choice in found.choices} == set(choices)


@pytest.mark.parametrize(
    ("choices", "options", "says"),
    [
        (("yes",), {"prompt": "x"}, "1 choice"),
        ((), {"prompt": "x"}, "0 choices"),
        (("yes", " "), {"prompt": "x"}, "empty"),
        (("yes", "yes"), {"prompt": "x"}, "given twice"),
        (("yes", "no"), {}, "nothing to choose for"),
        (("yes", "no"), {"prompt": "x", "answer": "It is."}, "no gap"),
        (("yes", "no"), {"prompt": "x", "answer": "{{}} or {{}}"}, "2 gaps"),
        (("yes", "no"), {"answer": "It is {{}}", "system": "x"}, "needs a prompt"),
        (("yes", "no"), {"prompt": "x", "passes": 0}, "at least 1"),
        (("yes", "a cat sat on the mat and then it ran"), {"prompt": "x"}, "a canvas of this model has 8"),
        (("yes", "<eos>"), {"prompt": "x"}, "control token"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(tiny, choices, options, says):
    with pytest.raises(DgenError, match=says) as caught:
        choose(tiny, choices, seed=1, **options)
    assert isinstance(caught.value, UsageError)
    assert caught.value.hint
