"""How many may run: down at once, up with care, never beyond the slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dgen.batch.room import Room


def waited(room: Room, most: int = 10_000) -> int:
    """How many requests end well until one more may run."""
    limit = room.limit
    for count in range(1, most + 1):
        room.ended_well()
        if room.limit != limit:
            assert room.limit == limit + 1
            return count
    return 0


def test_memory_that_holds_again_gets_all_slots_back_and_no_more():
    room = Room(8)
    room.shrink(8)
    assert room.limit == 4
    room.shrink(4)
    room.shrink(2)
    assert room.limit == 1
    limits = [(waited(room), room.limit)[1] for _ in range(7)]
    assert limits == [2, 3, 4, 5, 6, 7, 8]
    assert waited(room) == 0


def test_one_more_is_tried_after_as_many_as_run_have_ended():
    room = Room(100)
    room.shrink(100)
    assert waited(room) == 51


def test_a_failure_of_one_more_goes_back_to_what_held():
    room = Room(8)
    room.shrink(8)
    waited(room)
    waited(room)
    assert room.limit == 6
    room.shrink(6)
    assert room.limit == 5
    room.shrink(5)  # it does not hold any more
    assert room.limit == 2


def test_a_limit_that_failed_again_is_tried_ever_later():
    room = Room(3)
    room.shrink(3)
    room.shrink(2)
    assert room.limit == 1
    waits = []
    for _ in range(4):
        waits.append(waited(room))
        assert room.limit == 2
        room.shrink(2)
        assert room.limit == 1
    assert waits == [8, 32, 128, 512]


def test_what_one_request_alone_has_failed_is_held_against_no_number():
    room = Room(4)
    for _ in range(5):
        room.shrink(4)
        room.shrink(2)
        room.restore()
        assert room.limit == 4
    room.shrink(4)
    assert (waited(room), waited(room), room.limit) == (8, 8, 4)


@given(st.integers(2, 9), st.lists(st.integers(0, 12), max_size=60))
def test_the_limit_stays_within_bounds(full, ends):
    room = Room(full)
    for count in ends:
        if count == 0 and room.limit > 1:
            before = room.limit
            room.shrink(before)
            assert room.limit < before
        for _ in range(count):
            room.ended_well()
        assert 1 <= room.limit <= full
