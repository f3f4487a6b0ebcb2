"""Drafts: whole words are taken out, as many as asked for, and everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgen.errors import UsageError
from dgen.infill.draft import renoise_share, renoise_spans
from dgen.infill.template import Gap

DRAFT = "Once upon a time, a brave fox's den was warm.\nThe end."


def letters(text: str) -> int:
    return len(text)


@given(st.floats(0.01, 1), st.integers(0, 10**6))
def test_a_share_of_the_words_goes_and_the_rest_is_kept(share, seed):
    template = renoise_share(DRAFT, share, seed=seed, count_tokens=letters)
    assert all(gap.least == gap.most for gap in template.gaps)
    # Sizes count the letters that went, with the space before a gap.
    gone = [
        gap.least - piece.endswith(" ") for gap, piece in zip(template.gaps, template.pieces, strict=False)
    ]
    assert sum(gone) + sum(map(len, template.pieces)) == len(DRAFT)
    kept = sum(len(piece.replace(",", " ").replace(".", " ").split()) for piece in template.pieces)
    assert 12 - kept == max(round(share * 12), 1)


def test_the_seed_draws_the_words():
    drawn = {renoise_share(DRAFT, 0.3, seed=seed, count_tokens=letters).pieces for seed in range(20)}
    assert len(drawn) > 10
    again = renoise_share(DRAFT, 0.3, seed=4, count_tokens=letters)
    assert again == renoise_share(DRAFT, 0.3, seed=4, count_tokens=letters)


def test_the_whole_share_leaves_no_word():
    template = renoise_share("one two, three", 1.0, seed=0, count_tokens=letters)
    assert template.pieces == ("", ", ", "")


def test_spans_are_gaps_of_up_to_their_own_size():
    template = renoise_spans("a red fox ran", [(6, 9), (2, 5)], count_tokens=letters)
    assert template.pieces == ("a ", " ", " ran")
    assert template.gaps == (Gap(1, 4), Gap(1, 4))


@pytest.mark.parametrize("spans", [[(3, 3)], [(5, 3)], [(0, 99)], [(0, 4), (3, 6)], [(0, 4), (4, 6)]])
def test_spans_that_are_empty_outside_or_touch_are_refused(spans):
    with pytest.raises(UsageError):
        renoise_spans("a red fox ran", spans, count_tokens=letters)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(UsageError, match="renoise"):
        renoise_share(DRAFT, share, seed=0, count_tokens=letters)


def test_a_draft_without_words_is_refused():
    with pytest.raises(UsageError, match="no word"):
        renoise_share("... !", 0.5, seed=0, count_tokens=letters)
