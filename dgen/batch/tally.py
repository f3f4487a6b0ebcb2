"""What a batch has come to: numbers to show, and nothing that shows them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dgen.engine.events import Converged, Event
from dgen.output.text import Piece


@dataclass(slots=True)
class Tally:
    """Counts of this run; `before` are lines that an earlier one has done.

    `total` is None while a stream's length is unknown. Rates are of the time since `started`. `done` and `failed` are
    changed by the writer's thread alone, the rest by the engine's, so that none needs a lock.
    """

    total: int | None = None
    before: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    tokens: int = 0
    canvases: int = 0
    steps: int = 0
    started: float = field(default_factory=time.perf_counter)

    def hear(self, event: Event | Piece) -> None:
        """Count what an event says."""
        if isinstance(event, Converged):
            self.tokens += len(event.tokens)
            self.canvases += 1
            self.steps += event.steps

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens, of all requests together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def steps_per_canvas(self) -> float | None:
        """Denoising steps of a converged canvas, on average."""
        return self.steps / self.canvases if self.canvases else None

    @property
    def left(self) -> int | None:
        """Lines that have neither succeeded nor failed."""
        return None if self.total is None else self.total - self.before - self.done - self.failed

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far; None before the first line is through."""
        through = self.done + self.failed
        return None if not through or self.left is None else self.left * self.seconds / through
