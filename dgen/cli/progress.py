"""A transient status line on stderr while something takes its time; where that is no terminal, a line now and then.

It yields to committed text: where stdout is the same terminal, the line is gone for good once text has been
written, since erasing it could take an unfinished line of text along.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

from dgen.cli.sink import Sink, is_terminal, wants_color

PLAIN_SECONDS = 10.0
LONG_TEXT = 1_000_000
"""Characters; a tokenizer takes seconds for more, during which nothing else can be told."""


class Progress:
    """Context manager around the slow parts of a command."""

    def __init__(self, sink: Sink) -> None:
        self._enabled = not sink.quiet and is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._shares_terminal = is_terminal(sys.stdout)
        self._sink = sink
        self._plain = not is_terminal(sys.stderr)
        self._last_plain = time.monotonic()
        self._live: Any = None
        self._spinner: Any = None

    def __enter__(self) -> Progress:
        return self

    def update(self, text: str) -> None:
        """Show `text` as what is going on."""
        if self._plain and time.monotonic() - self._last_plain > PLAIN_SECONDS:
            self._sink.note(text)
            self._last_plain = time.monotonic()
        if not self._enabled:
            return
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        if self._live is None:
            self._spinner = Spinner("dots", text=text, style="dim" if wants_color(sys.stderr) else None)
            # Live's redirects would send stdout to stderr.
            self._live = Live(
                self._spinner,
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                refresh_per_second=10,
            )
            self._live.start()
        else:
            self._spinner.update(text=text)

    def encoding(self, text: str) -> None:
        """Say that this text is being made into tokens, and where it is a long one, at once."""
        if len(text) < LONG_TEXT:
            return
        self._last_plain = -PLAIN_SECONDS
        self.update(f"encoding a text of {len(text) / 1e6:.1f} million characters")
        if self._live is not None:
            # The tokenizer may keep the thread that draws from running.
            self._live.refresh()

    def amount(self, kind: str, done: int, total: int) -> None:
        """Show how much of a download or load is done, in bytes."""
        doing = "downloading" if kind == "download" else "loading the checkpoint"
        self.update(f"{doing}: {done / 1e9:.1f} of {total / 1e9:.1f} GB" if total >= 1e8 else doing)

    def pause(self) -> None:
        """Take the line away so that others can be written; the next `update` shows it again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def clear(self) -> None:
        """Remove the line before text is written."""
        self.pause()
        if self._shares_terminal:
            self._enabled = False

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
