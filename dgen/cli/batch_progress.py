"""How far a batch is, on stderr: two live lines on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

from dgen.batch.tally import Tally
from dgen.cli.progress import PLAIN_SECONDS
from dgen.cli.sink import Sink, is_terminal

_BAR_WIDTH = 30


class BatchProgress:
    """Context manager around a run; `show` is cheap enough to be called after every event."""

    def __init__(self, sink: Sink, tally: Tally) -> None:
        self._sink, self._tally = sink, tally
        self._live_wanted = not sink.quiet and is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._last_plain = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> BatchProgress:
        self.show()
        return self

    def show(self) -> None:
        """Show the tally as it is."""
        if self._live_wanted:
            if self._live is None:
                self._start()
        elif time.monotonic() - self._last_plain > PLAIN_SECONDS:
            self._sink.note(" · ".join([_amount(self._tally), *facts(self._tally)]))
            self._last_plain = time.monotonic()

    def warn(self, text: str, hint: str = "") -> None:
        """A warning above the live lines; a hint that many of them share is given once."""
        self._stop()
        self._sink.warn(text, hint=self._sink.hint_once(hint))
        self.show()

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Live's redirects would send stdout to stderr.
        self._live = Live(
            get_renderable=self._render,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=4,
        )
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally = self._tally
        first = Table.grid(padding=(0, 1))
        through = tally.before + tally.done + tally.failed
        total = None if tally.total is None else float(tally.total)
        bar = ProgressBar(total=total, completed=through, width=_BAR_WIDTH, pulse=total is None)
        first.add_row(bar, Text(_amount(tally)))
        return Group(first, Text(" · ".join(facts(tally)), style="dim", overflow="ellipsis", no_wrap=True))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()


def facts(tally: Tally) -> list[str]:
    """What is known of a run beside how many lines are done, a few words each."""
    told = []
    if tally.failed:
        told.append(f"{tally.failed} failed")
    told.append(f"{tally.running} running")
    told.append(f"{tally.tokens_per_second:.0f} tokens/s")
    if tally.steps_per_canvas is not None:
        told.append(f"{tally.steps_per_canvas:.1f} steps a canvas")
    if tally.seconds_left is not None:
        told.append(f"{duration(tally.seconds_left)} left")
    return told


def duration(seconds: float) -> str:
    """12 s, 3:05 or 1:02:09."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}" if minutes else f"{whole} s"


def _amount(tally: Tally) -> str:
    done = tally.before + tally.done
    return f"{done} done" if tally.total is None else f"{done}/{tally.total} done"
