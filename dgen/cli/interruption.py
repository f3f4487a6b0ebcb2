"""Signals that end a command: what is committed stays, the terminal is left in order, the exit code says which.

128 + the signal's number is the shell's own convention: 130 for Ctrl-C, 143 for a plain kill.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal ends the program; unwinds so that context managers tidy up. Of Ctrl-C `app` makes one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def unwind_on_termination() -> None:
    """Let SIGTERM and SIGHUP raise `Terminated` where they would have killed the process on the spot."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let ending signals call the handler, and return those before it.

    A signal that the process was started to ignore (a script's background job) stays ignored.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


class Unswallowed:
    """Inside, an ending signal raises as it does outside, and cannot be lost.

    What is being imported or loaded may catch whatever is raised in it, and go on or fail in its own way: torch
    does while it imports numpy. `check`, and leaving, raise again what was swallowed.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Unswallowed:
        self._before = _handle(self._on_signal)
        return self

    def check(self) -> None:
        """Raises KeyboardInterrupt or Terminated if such a signal has come."""
        if self._raised is not None:
            raise self._raised from None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._raised = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        raise self._raised

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _restore(self._before)
        if value is not self._raised:
            self.check()


class Interruption:
    """Inside, the first ending signal calls `interrupt`, which is to end the work soon; a second ends it at once."""

    exit_code = 130

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self.happened = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        self._before = _handle(self._on_signal)
        return self

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        self.happened = True
        self._interrupt()
        _restore(self._before)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _restore(self._before)
