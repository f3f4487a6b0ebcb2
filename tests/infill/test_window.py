"""Windows: what is given stands where it must, and every gap has its right side in its own canvas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgen.infill.template import Gap
from dgen.infill.window import Planner

END, BASE = 9999, (7, 7)


def planner(pieces: list[int], gaps: list[int | None], canvas_len: int = 32) -> Planner:
    numbers = iter(range(100, 9000))
    ids = tuple(tuple(next(numbers) for _ in range(count)) for count in pieces)
    return Planner(BASE, ids, tuple(Gap(most=most) for most in gaps), canvas_len, END)


def test_a_text_that_fits_is_one_window_that_ends_with_its_end():
    plan = planner([4, 3, 2], [2, 3])
    window = plan.next([])
    assert window.prefix == BASE
    assert window.gaps == (0, 1)
    pins = window.pins((1, 3))
    row = [pins.get(position, 0) for position in range(window.size((1, 3)))]
    assert row == [100, 101, 102, 103, 0, 104, 105, 106, 0, 0, 0, 107, 108, END]
    assert window.spots((1, 3)) == [(4, 5), (8, 11)]


def test_a_gap_at_the_end_has_no_length_and_no_end():
    window = planner([4, 0], [5]).next([])
    assert window.trailing
    assert window.pins(()) == {0: 100, 1: 101, 2: 102, 3: 103}
    assert window.size(()) == 4


@pytest.mark.parametrize("canvas_len", [1, 4, 6, 8, 32])
@pytest.mark.parametrize("beyond", range(4))
def test_the_end_behind_a_gap_at_the_end_has_its_place_wherever_the_gap_fills_a_canvas(canvas_len, beyond):
    window = planner([2, 0], [2 * canvas_len - 2 + beyond], canvas_len).next([])
    assert window.trailing
    assert window.end == END


def test_a_long_text_begins_a_window_shortly_before_its_gap_and_fills_the_canvas_behind_it():
    window = planner([100, 100], [4]).next([])
    assert len(window.prefix) == len(BASE) + 92
    assert len(window.left) == 8
    assert window.size((4,)) == 32
    assert window.end is None


def test_the_next_window_reads_what_the_first_one_wrote():
    plan = planner([10, 60, 10], [2, 2])
    first = plan.next([])
    assert first.gaps == (0,)
    second = plan.next([(51, 52)])
    assert second.gaps == (1,)
    whole = (*second.prefix, *second.left)
    assert whole == (*BASE, *plan.pieces[0], 51, 52, *plan.pieces[1])
    assert second.end == END


@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=6),
    st.data(),
    st.sampled_from([8, 32, 64]),
    st.booleans(),
)
def test_all_gaps_are_filled_in_order_with_what_is_given_around_them(pieces, data, canvas_len, trailing):
    if trailing:
        pieces[-1] = 0
    gaps = data.draw(
        st.lists(st.none() | st.integers(1, 40), min_size=len(pieces) - 1, max_size=len(pieces) - 1)
    )
    plan = planner(pieces, gaps, canvas_len)
    fills: list[tuple[int, ...]] = []
    while len(fills) < len(gaps):
        window = plan.next(fills)
        assert window.gaps[0] == len(fills)
        inner = window.gaps[:-1] if window.trailing else window.gaps
        lengths = tuple(plan.most(gap) for gap in inner)
        for gap, (_, end), ids in zip(inner, window.spots(lengths), window.between, strict=False):
            # The right side of the gap is pinned, at least its first token.
            following = plan.pieces[gap + 1]
            assert ids[:1] == following[:1]
            assert window.pins(lengths)[end] == following[0]
        before = (*window.prefix, *window.left)
        given = [token for piece in plan.pieces[: len(fills) + 1] for token in piece]
        assert [token for token in before if 100 <= token < 9000] == given
        fills += [(1,) * plan.most(gap) for gap in window.gaps]
