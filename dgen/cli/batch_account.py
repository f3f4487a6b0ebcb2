"""What a batch says when it ends, however it ends: what came of it, and the command that goes on."""

from __future__ import annotations

import shlex
import sys

from dgen.batch.tally import Tally
from dgen.cli.batch_progress import duration
from dgen.cli.sink import Sink
from dgen.cli.values import count_of

FAILED_LINES = 4
"""Exit code of a batch that went through with failed lines."""


def say_done(sink: Sink, tally: Tally) -> int:
    """A batch went through; returns its exit code."""
    sink.note(summary(tally))
    if not tally.failed:
        return 0
    sink.warn(
        f"{count_of(tally.failed, 'line')} failed: their records have an error, "
        "and the same command runs them again"
    )
    return FAILED_LINES


def summary(tally: Tally) -> str:
    """What was done, in a line."""
    parts = [f"{tally.before + tally.done} done" + ("" if tally.total is None else f" of {tally.total}")]
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    if tally.canvases:
        parts.append(f"{tally.tokens} tokens in {duration(tally.seconds)}")
        parts.append(f"{tally.tokens_per_second:.0f} tokens/s")
        parts.append(f"{tally.steps_per_canvas:.1f} steps a canvas")
    return " · ".join(parts)


def say_how_to_resume(sink: Sink, source: str) -> None:
    """The run has stopped with lines left.

    Args:
        source: the input's name.
    """
    # A second --overwrite would throw away what is done.
    words = [word for word in sys.argv[1:] if word != "--overwrite"]
    sink.note(f"To resume{_same_input(source)}: {shlex.join(['dgen', *words])}")


def say_nothing_was_run(sink: Sink, source: str) -> None:
    """A signal came before the run; `source` as in `say_how_to_resume`."""
    command = shlex.join(["dgen", *sys.argv[1:]])
    sink.note(f"Interrupted before anything was run. To run it{_same_input(source)}: {command}")


def _same_input(source: str) -> str:
    return " (with the same input)" if source == "-" else ""
