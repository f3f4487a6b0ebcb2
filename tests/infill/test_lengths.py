"""Lengths of gaps: which are tried, and that the best ones are found without trying all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgen.infill.lengths import SHORTLIST, length_options, shortlist
from dgen.infill.template import Gap


def test_lengths_worth_trying_are_all_the_short_ones_and_the_most():
    assert length_options(Gap(most=4), 4) == (1, 2, 3, 4)
    assert length_options(Gap(5, 5), 5) == (5,)
    long = length_options(Gap(most=200), 200)
    assert long[:16] == tuple(range(1, 17))
    assert long[-1] == 200
    assert len(long) < 32


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data())
def test_the_best_lengths_are_found_and_none_is_scored_twice(most, data):
    best = tuple(data.draw(st.integers(1, count)) for count in most)
    asked: list[tuple[int, ...]] = []

    def score(combos):
        asked.extend(combos)
        return [-sum(abs(a - b) for a, b in zip(combo, best, strict=True)) for combo in combos]

    found = shortlist([range(1, count + 1) for count in most], score)
    assert found[0] == best
    assert len(found) <= SHORTLIST
    assert len(set(asked)) == len(asked) <= 200


def test_where_there_is_one_combination_nothing_is_scored():
    assert shortlist([(3,), (5,)], lambda combos: pytest.fail("scored")) == [(3, 5)]
    assert shortlist([], lambda combos: pytest.fail("scored")) == [()]
