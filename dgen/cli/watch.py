"""Who else sees a request's events while it runs: the live canvas and the trace."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from dgen._version import __version__
from dgen.cli.outputs import spare_foreign
from dgen.cli.sink import Sink, is_terminal, wants_color
from dgen.errors import OutputError, SettingsError, UsageError
from dgen.output.text import Piece

if TYPE_CHECKING:
    from dgen.engine.events import Event
    from dgen.generator import Generator
    from dgen.job import Job
    from dgen.output.live.canvas import LiveCanvas, Place
    from dgen.output.text import Vocabulary
    from dgen.output.trace import TraceWriter

DRAFTS = ("auto", "on", "off")
MOST_SECONDS = 60.0
_TRACE_START = b'{"type":"header","trace"'
_PACKAGES = ("torch", "transformers", "triton")

Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        help="Show the canvas on stderr while it is denoised; auto: on a terminal.",
        metavar="|".join(DRAFTS),
        rich_help_panel="Output",
    ),
]
Slow = Annotated[
    str | None,
    typer.Option(
        "--slow",
        help="Hold each step of the shown canvas this long.",
        metavar="SECONDS",
        rich_help_panel="Output",
        show_default=False,
    ),
]
TraceFile = Annotated[
    str | None,
    typer.Option(
        "--trace",
        help="Write every denoising step to this file as JSONL (see dgen trace).",
        metavar="FILE",
        rich_help_panel="Output",
        show_default=False,
    ),
]


class Watch:
    """Context manager around one request; `see` takes each of its events, in order, before anyone writes of it.

    Args:
        draft, slow, trace: as the options of these names.
        sink: whose quietness and format count.

    Raises:
        UsageError, SettingsError: a value that is none, or a trace file that can't be written; before long work.
    """

    def __init__(
        self, sink: Sink, *, draft: str = "auto", slow: str | None = None, trace: str | None = None
    ) -> None:
        self._sink = sink
        self._hold = parse_seconds(slow)
        self._place = place_of(draft, sink)
        if self._hold and self._place is None:
            if draft == "off":
                raise SettingsError(
                    "--slow holds the canvas, and --draft off shows none", hint="Leave one of them out."
                )
            sink.warn("--slow has no effect: there is no canvas to hold; --draft on shows one")
        self._file = None if trace is None else _TraceFile(trace)
        self._canvas: LiveCanvas | None = None
        self._writer: TraceWriter | None = None
        self.failure: OutputError | None = None
        """What kept the trace from being written whole; the answer does not suffer from it."""

    @property
    def shows_canvas(self) -> bool:
        """Whether steps are shown, so that no other progress is needed."""
        return self._place is not None

    def begin(
        self,
        generator: Generator,
        job: Job,
        *,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Say whose events follow.

        Args:
            is_over: True ends the wait that `--slow` asks for.
        """
        vocabulary = generator.checkpoint.vocabulary
        if self._place is not None:
            self._canvas = canvas_on(
                self._place, vocabulary, max_steps=job.request.steps, hold_seconds=self._hold, is_over=is_over
            )
        if self._file is not None:
            from dgen.output.trace import TraceWriter

            header = _header(generator, job)
            with self._guard():
                self._writer = TraceWriter(self._file.begin(), vocabulary=vocabulary, header=header)

    def see(self, item: Event | Piece) -> None:
        """Show and write the event; what is shown is gone before a piece of text is written."""
        if isinstance(item, Piece):
            if self._canvas is not None and item.text:
                self._canvas.hide()
                if text := on_screen(item, self._sink):
                    self._canvas.wrote(text)
            return
        if self._writer is not None and self.failure is None:
            with self._guard():
                self._writer.see(item)
        if self._canvas is not None:
            self._canvas.see(item)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the canvas away and close the trace."""
        if self._canvas is not None:
            self._canvas.hide()
        if self._file is not None:
            with self._guard():
                self._file.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            assert self._file is not None
            self.failure = self.failure or OutputError(
                f"the trace '{self._file.path}' is incomplete: {error.strerror or error}",
                hint="Check its disk's free space and permissions.",
            )


def on_screen(piece: Piece, sink: Sink) -> str:
    """What of the piece lands, by this sink, on the canvas's screen."""
    if not sink.is_text:
        return ""
    if piece.channel == "answer":
        return piece.text if _may_share_screen(sys.stdout) else ""
    return "" if sink.quiet else piece.text


def canvas_on(
    place: Place,
    vocabulary: Vocabulary,
    *,
    max_steps: int | None,
    hold_seconds: float = 0.0,
    is_over: Callable[[], bool] = lambda: False,
) -> LiveCanvas:
    """The live canvas at a place that `place_of` chose."""
    from dgen.output.live.canvas import LiveCanvas

    return LiveCanvas(
        place, vocabulary=vocabulary, max_steps=max_steps, hold_seconds=hold_seconds, is_over=is_over
    )


def place_of(draft: str, sink: Sink) -> Place | None:
    """Where the canvas is shown; None for nowhere."""
    if draft not in DRAFTS:
        raise SettingsError(
            f"--draft must be one of {', '.join(DRAFTS)}, not '{draft}'", hint="The default is auto."
        )
    if draft == "off" or (draft == "auto" and sink.quiet) or sys.stderr is None:
        return None
    from dgen.output.live.screen import Lines, Screen

    if is_terminal(sys.stderr) and os.environ.get("TERM", "dumb") != "dumb":
        return Screen(sys.stderr, color=wants_color(sys.stderr))
    return Lines(sys.stderr) if draft == "on" else None


def parse_seconds(value: str | None) -> float:
    """The value of --slow; SettingsError for one that is none."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:
        raise SettingsError(
            f"--slow must be a number of seconds from 0 to {MOST_SECONDS:g}, not '{value}'",
            hint="For example: --slow 0.3",
        )
    return seconds


def _may_share_screen(stream: TextIO | None) -> bool:
    """Whether what is written there may show up where the canvas is: a terminal, or a pipe to who knows what."""
    if stream is None or is_terminal(stream):
        return stream is not None
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    return False


class _TraceFile:
    """A file that is checked at once and emptied only when there is something to write."""

    def __init__(self, path: str) -> None:
        if path in ("", "-"):
            raise UsageError(
                f"--trace needs the name of a file, not '{path}'", hint="stdout carries the answer."
            )
        if path.endswith(".gz"):
            raise UsageError(
                f"--trace writes each step as it happens, which gzip can't: '{path}'",
                hint="Leave .gz out and gzip the file afterwards; dgen trace reads both.",
            )
        spare_foreign(path, start=_TRACE_START, kind="trace", option="--trace")
        self.path = path
        where = Path(os.path.expanduser(path))
        self._is_new = not where.exists()
        self._where = where
        self._used = False
        try:
            self._stream: TextIO = where.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(
                f"can't write the trace '{path}': {error.strerror}",
                hint="Check the folder and its permissions.",
            ) from None

    def begin(self) -> TextIO:
        """The stream, emptied."""
        self._used = True
        with contextlib.suppress(OSError, ValueError):  # a pipe or a device has nothing to empty
            self._stream.truncate(0)
        return self._stream

    def close(self) -> None:
        """Close it; remove a file that was made for nothing."""
        self._stream.close()
        if self._is_new and not self._used:
            with contextlib.suppress(OSError):
                self._where.unlink()


def _header(generator: Generator, job: Job) -> dict[str, Any]:
    checkpoint = generator.checkpoint
    return {
        "dgen_version": __version__,
        "model": checkpoint.name,
        "revision": checkpoint.revision,
        "runtime": {
            "device": str(checkpoint.device),
            "dtype": str(checkpoint.dtype).removeprefix("torch."),
            "denoiser": generator.denoiser.name,
            "kernels": generator.kernels.name,
        },
        "seed": job.request.seed,
        "settings": job.resolved.request_settings(),
        "id": job.request_id,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "canvas_len": checkpoint.canvas_len,
        "prompt_ids": list(job.request.prompt_ids),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
