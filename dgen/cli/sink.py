"""Where output goes: the answer or JSON to stdout, everything else to stderr, whatever happens to either.

Knows streams and terminals; knows pieces and records as data, and nothing of the engine. Stdout that can't be
written ends the run (a closed pipe quietly, anything else as an OutputError); stderr that can't be written is
given up in silence. What goes to stderr holds no control characters of foreign text, nor does stdout where it
is a terminal; piped stdout is written as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TextIO

from dgen.errors import DgenError, OutputError
from dgen.output.records import LogprobsOf, Record, dumps, token_record
from dgen.output.text import Piece, Vocabulary

Format = Literal["text", "json", "jsonl"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_DIM, _RED, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


class ClosedPipe(Exception):
    """The reader of stdout is gone: end with exit code 0 and say nothing."""


class Sink:
    """Writes one command's output.

    Args:
        stdout, stderr: text streams as of `standard_streams`; None where the process has none.
        format: text writes the answer as it comes, json one completion, jsonl token lines and a completion.
        quiet: nothing on stderr but errors.
        verbose: details on stderr.
        color: dim and coloured stderr; without effect where stderr is no terminal.

    Each method that writes to stdout flushes it and raises ClosedPipe or OutputError; afterwards stdout is
    given up and later calls write nothing there.
    """

    def __init__(
        self,
        stdout: TextIO | None,
        stderr: TextIO | None,
        *,
        format: Format = "text",
        quiet: bool = False,
        verbose: bool = False,
        color: bool = False,
    ) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._format = format
        self.quiet = quiet
        self._verbose = verbose
        self._escapes = is_terminal(stdout)
        self._color = color and is_terminal(stderr)
        self._hinted: set[str] = set()
        self._given_up = False
        self._answer_begun = False
        self._answer_open = False  # the answer's last line has no newline yet
        self._thought_open = False  # neither has the reasoning's on stderr
        self._after_answer = False  # what was last written is that unfinished line
        self._token_record: Callable[..., Record] | None = None

    @property
    def is_text(self) -> bool:
        """Whether stdout carries the answer rather than records."""
        return self._format == "text"

    def check(self) -> None:
        """Raises OutputError if the process has no stdout; call before long work."""
        if self._stdout is None or self._stdout.closed:
            self._given_up = True
            raise OutputError("standard output is closed", hint="Redirect it to a file or to /dev/null.")

    def begin(
        self, *, vocabulary: Vocabulary, request_id: str, index: int = 0, logprobs_of: LogprobsOf = "tempered"
    ) -> None:
        """Says whose pieces follow; needed before the first in jsonl."""
        self._token_record = partial(
            token_record, vocabulary=vocabulary, request_id=request_id, index=index, logprobs_of=logprobs_of
        )
        self._answer_begun = False

    def piece(self, piece: Piece) -> None:
        """text: the answer to stdout, reasoning to stderr; jsonl: one line a token; json: nothing yet."""
        if self._format == "text":
            if piece.channel == "answer":
                self._write_answer(piece.text)
            elif piece.text and not self.quiet:
                self._write_thought(piece.text)
        elif self._format == "jsonl" and piece.tokens:
            assert self._token_record is not None, "piece before begin"
            records = [self._token_record(emitted, channel=piece.channel) for emitted in piece.tokens]
            self._write("".join(f"{dumps(record)}\n" for record in records))

    def document(self, text: str) -> None:
        """A text of dgen's own to stdout, in any format, ended by a newline."""
        self._write(f"{text}\n")

    def completion(self, record: Record) -> None:
        """json: the record's line; jsonl: that without its `logprobs`; text: ends the answer's last line.

        As text, an empty answer is an empty line, but a request that failed or was interrupted before its
        first text leaves nothing.
        """
        if self._format == "json":
            self.document(dumps(record))
        elif self._format == "jsonl":
            self.document(dumps({**record, "logprobs": None}))
        elif self._answer_begun or record["finish_reason"] not in ("error", "interrupted"):
            self._end_answer(begun=True)
        self._answer_begun = False

    def note(self, text: str) -> None:
        """One dim line to stderr, unless quiet."""
        if not self.quiet:
            self._say(self._styled(_one_line(text), _DIM))

    def detail(self, text: str) -> None:
        """A note for the verbose."""
        if self._verbose:
            self.note(text)

    def warn(self, text: str, *, hint: str = "") -> None:
        """One warning line to stderr, and one with the next thing to try, if there is one; unless quiet."""
        if not self.quiet:
            self._say(f"{self._styled('Warning:', _YELLOW)} {_one_line(text)}")
            self._hint(hint)

    def error(self, error: DgenError) -> None:
        """What went wrong and, where there is one, the next thing to try: a line each to stderr."""
        with contextlib.suppress(ClosedPipe, OutputError):
            self._end_answer()
        self._say(f"{self._styled('Error:', _RED)} {_one_line(error.message)}")
        self._hint(error.hint)

    def end_lines(self) -> None:
        """Ends the lines that an answer or a thought has left open, where a turn was given up."""
        self._end_answer()
        self._end_thought()

    def close(self) -> None:
        """Ends open lines and reports what the system only tells at the end (a full disk, a quota)."""
        self.end_lines()
        if self._stdout is not None and not self._given_up:
            self._write("", closing=True)

    def _write_answer(self, text: str) -> None:
        if not text:
            return
        self._end_thought()
        self._answer_begun = True
        self._answer_open = self._after_answer = not text.endswith("\n")
        self._write(escaped(text) if self._escapes else text)

    def _end_answer(self, *, begun: bool = False) -> None:
        """Adds the answer's last newline where it is missing; `begun` counts an empty answer as one."""
        if self._answer_open or (begun and not self._answer_begun):
            self._answer_open = self._after_answer = False
            self._write("\n")

    def _end_thought(self) -> None:
        if self._thought_open:
            self._thought_open = False
            self._err("\n")

    def _write_thought(self, text: str) -> None:
        self._leave_answer_line()
        self._err(self._styled(escaped(text), _DIM))
        self._thought_open = not text.endswith("\n")

    def hint_once(self, hint: str) -> str:
        """The hint, or nothing where it was asked for before: many lines may share one."""
        if hint in self._hinted:
            return ""
        self._hinted.add(hint)
        return hint

    def _hint(self, text: str) -> None:
        if text:
            self._say(f"{self._styled('Hint:', _DIM)} {_one_line(text)}")

    def _say(self, line: str) -> None:
        self._end_thought()
        self._leave_answer_line()
        self._err(f"{line}\n")

    def _leave_answer_line(self) -> None:
        # On one screen, stderr would continue the answer's unfinished line.
        if self._after_answer and self._escapes and is_terminal(self._stderr):
            self._err("\n")
        self._after_answer = False

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{_RESET}" if self._color else text

    def _write(self, text: str, *, closing: bool = False) -> None:
        if self._given_up:
            return
        self.check()
        stream = self._stdout
        assert stream is not None
        try:
            stream.write(text)
            stream.flush()
            if closing:
                _close_copy(stream)
        except OSError as error:
            self._given_up = True
            _silence(stream)
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                raise ClosedPipe from None
            raise OutputError(
                f"can't write to standard output: {error.strerror or error}",
                hint="Check where the output goes: its free space, quota and permissions.",
            ) from error

    def _err(self, text: str) -> None:
        if self._stderr is None:
            return
        try:
            self._stderr.write(text)
            self._stderr.flush()
        except (OSError, ValueError):  # ValueError: closed, or an encoding that is not ours
            _silence(self._stderr)
            self._stderr = None


def standard_streams() -> tuple[TextIO | None, TextIO | None]:
    """stdout and stderr as UTF-8 in any locale, newlines untouched; None where the process started without.

    Closed standard descriptors are opened on the null device, or the next file opened would take the number
    and catch what libraries write to it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    return _utf8(sys.stdout, errors="strict"), _utf8(sys.stderr, errors="backslashreplace")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether someone watches the stream."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def wants_color(stream: TextIO | None, *, environ: Mapping[str, str] | None = None) -> bool:
    """Whether to style the stream: a terminal that is not dumb, and no NO_COLOR in the environment."""
    environ = os.environ if environ is None else environ
    return is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def escaped(text: str) -> str:
    """The text with its control characters other than newline and tab as visible escapes."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}" if match[0] < "\u0100" else "\ufffd", text)


def _one_line(text: str) -> str:
    return escaped(text).replace("\n", "\\n")


def _utf8(stream: TextIO | None, *, errors: str) -> TextIO | None:
    if stream is None or stream.closed:
        return None
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with contextlib.suppress(OSError, ValueError):
        if isinstance(stream.buffer, io.RawIOBase):
            # PYTHONUNBUFFERED: a write that a signal cuts short would lose its rest.
            raw = io.FileIO(stream.fileno(), "w", closefd=False)
            return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors=errors, newline="\n")
        stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")
    return stream


def _close_copy(stream: TextIO) -> None:
    """Makes the system report deferred write errors, which some file systems only tell at a close."""
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    os.close(os.dup(number))


def _silence(stream: TextIO) -> None:
    """Points the stream's descriptor at the null device, so that the interpreter's last flush can't fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        if null != number:
            os.close(null)
        stream.flush()
