"""The live canvas: watches a request's events and shows each step's draft, calmly.

Draws where it is told to, and nowhere else. What is committed is not its business: it gets out of the
way before text is written, and goes on below it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dgen.engine.events import Converged, Denoised, Event, Prefilled
from dgen.output.live.frame import Row, Style, Texts, rows_of, shortened, styles_of
from dgen.output.text import Vocabulary

FRAME_SECONDS = 1 / 20
_SLICE_SECONDS = 0.05
_RATE_SECONDS = 0.5
"""What a rate is an average over at least: of one step's few milliseconds it would be any number."""


class Place(Protocol):
    """Where frames are shown."""

    @property
    def room(self) -> tuple[int, int]: ...

    def draw(self, rows: Sequence[Row], status: str) -> None: ...

    def hide(self) -> None: ...

    def wrote(self, text: str) -> None: ...


class LiveCanvas:
    """Shows the steps of one request.

    Args:
        place: a Screen, or Lines.
        vocabulary: what ids look like.
        max_steps: the most steps of a canvas, for the status line.
        hold_seconds: each step stays at least this long; 0 shows what fits into 20 frames a second.
        is_over: asked while a step is held; True ends the wait.
        clock, sleep: seconds.
    """

    def __init__(
        self,
        place: Place,
        *,
        vocabulary: Vocabulary,
        max_steps: int | None = None,
        hold_seconds: float = 0.0,
        is_over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = place
        self._texts = Texts(vocabulary)
        self._is_special = vocabulary.is_special
        self._max_steps = max_steps
        self._hold = hold_seconds
        self._is_over = is_over
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        self._drawn = float("-inf")
        self._accepted: tuple[bool, ...] = ()  # of the frame before
        self._emitted = 0
        self._height = 0  # of this canvas so far: a region that shrinks and grows would jump

    def see(self, event: Event) -> None:
        """Draw the event, if it is a step whose time has come."""
        if isinstance(event, Prefilled):
            self._began = self._clock()
        elif isinstance(event, Denoised):
            now = self._clock()
            if self._hold or now - self._drawn >= FRAME_SECONDS:
                self._draw(event, now)
                self._drawn = now
                self._wait(now + self._hold)
        elif isinstance(event, Converged):
            self._emitted += len(event.tokens)
            self._accepted, self._height = (), 0

    def hide(self) -> None:
        """Get out of the way of what is about to be written."""
        self._place.hide()

    def wrote(self, text: str) -> None:
        """Take note of text that was written on the same screen."""
        self._place.wrote(text)

    def _draw(self, event: Denoised, now: float) -> None:
        columns, most = self._place.room
        styles = styles_of(event.accepted, event.entropy, self._accepted)
        rows = rows_of(self._texts.of(event.draft, styles), columns)
        self._accepted = event.accepted
        room = max(1, most - 1)  # the status line is one row
        shown, first = _window(rows, room)
        self._height = min(room, max(self._height, len(shown)))
        shown = shown + [[]] * (self._height - len(shown))
        part = f"rows {first + 1}-{first + room} of {len(rows)}" if len(rows) > room else ""
        self._place.draw(shown, shortened([*self._status(event, now), *filter(None, [part])], columns))

    def _status(self, event: Denoised, now: float) -> list[str]:
        accepted = sum(event.accepted)
        of = f"/{self._max_steps}" if self._max_steps else ""
        seconds = now - self._began
        parts = [
            f"canvas {event.canvas + 1}, step {event.step + 1}{of}",
            f"{accepted}/{len(event.accepted)} accepted",
            f"entropy {event.mean_entropy:.3f}",
            f"T {event.temperature:.2f}",
        ]
        if seconds >= _RATE_SECONDS:
            # Behind the end of a text, positions are accepted that will not be emitted.
            text = sum(
                now and not self._is_special(token_id)
                for now, token_id in zip(event.accepted, event.draft, strict=True)
            )
            parts.append(f"{(self._emitted + text) / seconds:.0f} tokens/s")
        return parts

    def _wait(self, until: float) -> None:
        while (left := until - self._clock()) > 0 and not self._is_over():
            self._sleep(min(left, _SLICE_SECONDS))


def _window(rows: list[Row], room: int) -> tuple[list[Row], int]:
    """As many rows as there is room for, from the one before the first that is not accepted; and its number."""
    if len(rows) <= room:
        return rows, 0
    unsettled = (number for number, row in enumerate(rows) if any(style > Style.NEW for _, style in row))
    first = min(max(0, next(unsettled, len(rows)) - 1), len(rows) - room)
    return rows[first : first + room], first
