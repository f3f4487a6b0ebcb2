"""A question to this machine and its answer in a line, for doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dgen.errors import DgenError, SettingsError, UsageError

Status = Literal["ok", "warn", "skip", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """A question's name, its answer in a line, and the next thing to try where there is one."""

    name: str
    status: Status
    detail: str
    hint: str = ""


def answered(name: str, question: Callable[[], Check], *, debug: bool) -> Check:
    """The answer; what the question raises is a finding, whether or not anybody foresaw it.

    Raises:
        UsageError: the question was put wrongly; that tells nothing of the machine.
    """
    try:
        return question()
    except DgenError as error:
        # A setting may be well said and not be had here.
        if isinstance(error, UsageError) and not isinstance(error, SettingsError):
            raise
        return Check(name, "fail", error.message, error.hint)
    except Exception as error:  # a broken driver or package raises what it likes
        if debug:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Check(name, "fail", f"{type(error).__name__}: {reason}", "dgen doctor --debug shows where.")


def size(count: float) -> str:
    """Bytes for people: 1.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale / 10:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
