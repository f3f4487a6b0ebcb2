"""What infill and choose share: whole numbers, how far they are, scored texts in columns, and what ran it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, get_args

from dgen._version import __version__
from dgen.cli.account import tell_model
from dgen.cli.progress import Progress
from dgen.cli.sink import Format, Sink, escaped, is_terminal, wants_color
from dgen.errors import SettingsError
from dgen.settings import Resolved

if TYPE_CHECKING:
    from dgen.generator import Generator

_BOLD, _RESET = "\x1b[1;32m", "\x1b[0m"


def known_format(name: str, known: Sequence[str] = get_args(Format)) -> Any:
    """The format of this name; SettingsError for one that is none."""
    if name not in known:
        raise SettingsError(
            f"--format must be one of {', '.join(known)}, not '{name}'", hint="The default is text."
        )
    return name


def whole_number(name: str, text: str, *, low: int, high: int) -> int:
    """The whole number that an option was given; SettingsError for anything else."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise SettingsError(
            f"--{name} must be a whole number from {low} to {high}, not '{text}'",
            hint=f"For example: --{name} {low}",
        )
    return value


def marked(pieces: Sequence[str], fills: Sequence[str]) -> str:
    """The text with its fillings in it, in colour where stdout is a terminal that has some."""
    shown = escaped if is_terminal(sys.stdout) else str
    before, after = (_BOLD, _RESET) if wants_color(sys.stdout) else ("", "")
    parts = zip_longest(pieces, fills)
    return "".join(shown(piece) + (f"{before}{shown(fill)}{after}" if fill else "") for piece, fill in parts)


def aligned(rows: Iterable[tuple[str, str]]) -> str:
    """A line for each (score, text); further lines of a text begin where its first does."""
    return "\n".join(f"{score}  " + text.replace("\n", "\n" + " " * (len(score) + 2)) for score, text in rows)


def reporter(sink: Sink, progress: Progress, resolved: Resolved) -> Callable[[str, int, int], None]:
    """Shows how far a search is. When it has begun, nothing can be refused any more: then the model is told."""
    begun = False

    def report(doing: str, done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            progress.pause()
            tell_model(sink, resolved)
        progress.update(f"{doing}: {done} of {total}")

    return report


def runtime_of(generator: Generator) -> dict[str, Any]:
    """What the record of a run says of the checkpoint and of what ran it."""
    checkpoint = generator.checkpoint
    return {
        "model": checkpoint.name,
        "revision": checkpoint.revision,
        "runtime": {
            "device": str(checkpoint.device),
            "dtype": str(checkpoint.dtype).removeprefix("torch."),
            "denoiser": generator.denoiser.name,
            "kernels": generator.kernels.name,
        },
        "dgen_version": __version__,
    }
