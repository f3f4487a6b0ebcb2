"""The live canvas: when it draws, what its status says, and how it keeps still."""

from __future__ import annotations

import pytest
from traces import TOKENS, VOCABULARY, events, step

from dgen.engine.events import Converged, Denoised, Prefilled
from dgen.output.live.canvas import LiveCanvas
from dgen.output.live.frame import Style


class Place:
    """Keeps what it is told to draw."""

    def __init__(self, columns: int = 200, rows: int = 50) -> None:
        self.room = (columns, rows)
        self.frames: list[tuple[list, str]] = []

    def draw(self, rows, status) -> None:
        self.frames.append((list(rows), status))

    def hide(self) -> None: ...

    def wrote(self, text: str) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def canvas(place: Place, clock: Clock, **options) -> LiveCanvas:
    return LiveCanvas(place, vocabulary=VOCABULARY, max_steps=4, clock=clock, sleep=clock.sleep, **options)


def steps() -> list[Denoised]:
    return [event for event in events() if isinstance(event, Denoised)]


def test_no_more_than_twenty_frames_a_second():
    place, clock = Place(), Clock()
    live = canvas(place, clock)
    for number in range(100):
        live.see(step(0, number, tuple(range(len(TOKENS))), accepted=number % 20))
        clock.now += 0.01
    assert 15 <= len(place.frames) <= 20


def test_the_status_tells_canvas_step_acceptance_entropy_temperature_and_rate():
    place, clock = Place(), Clock()
    live = canvas(place, clock)
    live.see(Prefilled(0, 0, 2))
    clock.now += 2.0
    live.see(steps()[1])
    assert place.frames[0][1] == ("canvas 1, step 2/4 · 8/21 accepted · entropy 1.238 · T 0.70 · 3 tokens/s")


@pytest.mark.parametrize(("seconds", "told"), [(0.0, False), (0.001, False), (0.49, False), (0.5, True)])
def test_a_rate_waits_until_there_is_something_to_average(seconds, told):
    place, clock = Place(), Clock()
    live = canvas(place, clock)
    clock.now += seconds
    live.see(steps()[1])
    assert ("tokens/s" in place.frames[0][1]) == told


def test_newly_accepted_is_what_the_last_frame_did_not_show_as_accepted():
    place, clock = Place(), Clock()
    live = canvas(place, clock)
    draft = (3,) * len(TOKENS)
    for number, accepted in enumerate((2, 4, 6)):
        live.see(step(0, number, draft, accepted=accepted))
        clock.now += 0.03 if number == 0 else 0.1  # the second step comes too soon to be shown
    styles = [style for _, style in place.frames[1][0][0]]
    assert styles[:6] == [Style.ACCEPTED] * 2 + [Style.NEW] * 4
    assert Style.NEW not in styles[6:]


def test_a_region_does_not_shrink_within_a_canvas():
    place, clock = Place(columns=30), Clock()
    live = canvas(place, clock)
    long, short = (3,) * len(TOKENS), (0,) * len(TOKENS)
    for number, draft in enumerate((long, short)):
        live.see(step(0, number, draft, accepted=len(TOKENS)))
        clock.now += 1
    assert len(place.frames[0][0]) == len(place.frames[1][0]) > 1
    live.see(Converged(0, 0, 2, "steps", ()))
    live.see(step(1, 0, short, accepted=len(TOKENS)))
    assert len(place.frames[2][0]) == 1


def test_a_canvas_too_high_for_the_terminal_shows_where_it_is_unsettled():
    place, clock = Place(columns=10, rows=4), Clock()
    canvas(place, clock).see(step(0, 0, (3,) * len(TOKENS), accepted=15))
    rows, status = place.frames[0]
    assert len(rows) == 3
    assert {style for row in rows for _, style in row} > {Style.NEW}
    assert status == "canvas 1, "


@pytest.mark.parametrize(("over", "expected"), [(False, 1.0), (True, 0.0)])
def test_slow_holds_each_step_until_it_is_over(over, expected):
    place, clock = Place(), Clock()
    live = canvas(place, clock, hold_seconds=0.5, is_over=lambda: over)
    for event in steps()[:2]:
        live.see(event)
    assert clock.now - 100.0 == pytest.approx(expected)
    assert len(place.frames) == 2
    assert max(clock.slept, default=0) <= 0.05, "Ctrl-C is not kept waiting"
