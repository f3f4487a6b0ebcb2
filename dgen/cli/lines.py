"""What is said to a chat, message by message: typed with line editing, or piped, one line a message.

A line that ends in a backslash goes on in the next one; three double quotes open a block that three close. What is
pasted stays one message where the terminal marks pastes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from dgen.errors import UsageError

PROMPT, CONTINUED = "> ", ". "
_QUOTES = '"""'
_HISTORY_LENGTH = 1000


class Lines(Protocol):
    """Where lines come from."""

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None when there is no more."""


def read_message(lines: Lines) -> str | None:
    """The next message; None when there is none. KeyboardInterrupt drops what was begun.

    Raises:
        UsageError: bytes that are no text.
    """
    line = lines.read(PROMPT)
    if line is None:
        return None
    if line.lstrip().startswith(_QUOTES):
        return _block(line.lstrip().removeprefix(_QUOTES), lines)
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        more = lines.read(CONTINUED)
        if more is None:
            break
        parts.append(more)
    return "\n".join(parts)


def _block(first: str, lines: Lines) -> str:
    parts = [first]
    while not parts[-1].rstrip().endswith(_QUOTES):
        more = lines.read(CONTINUED)
        if more is None:
            return "\n".join(parts)
        parts.append(more)
    parts[-1] = parts[-1].rstrip().removesuffix(_QUOTES)
    return "\n".join(parts).strip("\n")


class PipedLines:
    """Lines of a file or pipe, as UTF-8."""

    def __init__(self) -> None:
        self._number = 0
        self._stream: BinaryIO = io.BufferedReader(io.FileIO(0, closefd=False))

    def read(self, prompt: str) -> str | None:
        """See `Lines.read`; nothing is prompted."""
        del prompt
        self._number += 1
        try:
            data = self._stream.readline()
        except OSError as error:
            self._stream = io.BytesIO()  # asking once more would only repeat it
            raise UsageError(
                f"can't read stdin: {error.strerror}", hint="Check where it comes from."
            ) from None
        if not data:
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"line {self._number} of stdin is not UTF-8: byte {data[error.start]:#04x}",
                hint="Convert it to UTF-8.",
            ) from None
        return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


class TypedLines:
    """Lines typed at a terminal: edited and remembered by readline where Python has it and stdout is the terminal.

    Args:
        prompts: where the prompt is written when readline does not; None for nowhere.
        words: what Tab completes at the beginning of a line.
        history: the file that remembers lines between runs; None for none.
    """

    def __init__(
        self, prompts: TextIO | None, *, words: Sequence[str] = (), history: Path | None = None
    ) -> None:
        self._prompts = prompts
        self._words = tuple(words)
        self._history = history
        self._readline = _readline() if os.isatty(1) else None
        if self._readline is not None:
            self._set_up(self._readline)

    def read(self, prompt: str) -> str | None:
        """See `Lines.read`; a KeyboardInterrupt leaves the cursor at a line's beginning."""
        try:
            if self._readline is not None:
                return input(prompt)
            if self._prompts is not None:
                self._prompts.write(prompt)
                self._prompts.flush()
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        except EOFError:
            return None
        except UnicodeDecodeError:
            raise UsageError("what was typed is not UTF-8", hint="Check the terminal's encoding.") from None

    @property
    def typed(self) -> bool:
        """Whether the line at hand has text in it, for whoever has caught a KeyboardInterrupt."""
        return self._readline is not None and bool(self._readline.get_line_buffer())

    def _set_up(self, readline: Any) -> None:
        readline.set_completer_delims("")
        readline.set_completer(self._complete)
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
        if not libedit:
            # Not every build has it on; a terminal that is dumb would show the sequences.
            wanted = "off" if os.environ.get("TERM", "dumb") == "dumb" else "on"
            readline.parse_and_bind(f"set enable-bracketed-paste {wanted}")
        if self._history is not None:
            with contextlib.suppress(OSError):
                readline.read_history_file(self._history)

    def _complete(self, text: str, state: int) -> str | None:
        found = [word for word in self._words if word.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    def close(self) -> None:
        """Remember the lines for the next run."""
        if self._readline is None or self._history is None:
            return
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT, 0o600))
            self._readline.set_history_length(_HISTORY_LENGTH)
            self._readline.write_history_file(self._history)


@contextmanager
def silent_keys() -> Iterator[None]:
    """What is typed meanwhile waits for the prompt unseen: an echo would move the canvas."""
    try:
        import termios

        before = termios.tcgetattr(0)
    except (ImportError, OSError, termios.error):
        yield
        return
    silent = list(before)
    silent[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(0, termios.TCSANOW, silent)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


def history_file() -> Path:
    """Where lines are remembered, by the convention for what a program keeps between its runs."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "dgen" / "chat_history"


def _readline() -> Any:
    try:
        import readline
    except ImportError:  # some builds of Python leave it out
        return None
    return readline
