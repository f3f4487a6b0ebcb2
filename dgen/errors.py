"""Every failure that a user can meet, as data: what went wrong, what to try next, which exit code.

Knows nothing else of dgen and imports the standard library alone, so that any room may raise one.
"""

from __future__ import annotations


class DgenError(Exception):
    """A failure with one line of cause and one line of advice.

    Args:
        message: one line that names the offending value.
        hint: the next thing to try; empty when there is none.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DgenError):
    """The command line or the input is not usable as given."""

    exit_code = 2


class SettingsError(UsageError):
    """A setting is unknown, of the wrong type, or out of range."""


class ContextError(UsageError):
    """Prompt and canvases do not fit the model's context; raised before any work starts."""


class CheckpointError(DgenError):
    """A checkpoint can't be found, read, trusted or held in memory."""

    exit_code = 3


class NumericalError(DgenError):
    """The model returned logits that define no distribution (NaN, or no finite entry)."""


class MemoryLimitError(DgenError):
    """Memory ran out while a request was running; fewer requests at a time may help."""


class OutputError(DgenError):
    """Output can't be written."""


def as_ours(
    error: Exception, *, doing: str = "", hint: str = "This is a bug in dgen; please report it."
) -> DgenError:
    """What nobody foresaw, in the form of ours: memory that ran out, or else a bug.

    Args:
        doing: what was being done: "writing the record".
        hint: of a bug.
    """
    if isinstance(error, DgenError):
        return error
    name = type(error).__name__
    line = (str(error).strip().splitlines() or ["no reason given"])[0]
    if name == "OutOfMemoryError":  # torch's, of a card
        return MemoryLimitError(
            f"the GPU is out of memory: {line}", hint="Shorten the prompt, or use --device cpu."
        )
    # torch has no class of its own for a CPU's memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "not enough memory" in line):
        return MemoryLimitError(
            f"out of memory: {line}", hint="Shorten the prompt or --max-tokens, or take fewer --slots."
        )
    return DgenError(f"unexpected {name}{f' in {doing}' if doing else ''}: {line}", hint=hint)
