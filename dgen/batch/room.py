"""How many requests may run at a time: fewer once memory has run out, one more after a while in which it has not.

Numbers only. One long prompt among many must not cost a night its slots, and a number that memory doesn't hold must
not be tried over and over.
"""

from __future__ import annotations

from collections import Counter

_PATIENCE = 8  # requests that end well before one more may run; as many as run, where that is more
_DISTRUST = 4  # times as many, after each further time that so many have failed


class Room:
    """The limit, and what has been seen of it.

    Args:
        full: the most that may ever run.
    """

    def __init__(self, full: int) -> None:
        self.limit = self._full = full
        self.shrunk = 0
        """How often memory has run out: tells a failure that was answered already from a new one."""
        self._held = 0  # a limit that memory has held for a while, and not failed since
        self._well = 0
        self._failures: Counter[int] = Counter()

    def shrink(self, running: int) -> None:
        """Memory has run out with so many running, two or more."""
        self._failures[running] += 1
        self.shrunk += 1
        self._well = 0
        if not 0 < self._held < running:
            self._held = 0
        self.limit = self._held or running // 2

    def ended_well(self) -> None:
        """A request has ended without a failure."""
        self._well += 1
        more = self.limit + 1
        patience = max(_PATIENCE, more) * _DISTRUST ** max(self._failures[more] - 1, 0)
        if more <= self._full and self._well >= patience:
            self._held, self.limit, self._well = self.limit, more, 0

    def restore(self) -> None:
        """The failures were those of one request that no room is enough for."""
        self._failures.clear()
        self.limit, self._held, self._well = self._full, 0, 0
