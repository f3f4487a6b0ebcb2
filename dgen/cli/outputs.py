"""Files that a command is told to write, where something may stand already."""

from __future__ import annotations

import os
from pathlib import Path

from dgen.errors import UsageError


def spare_foreign(path: str, *, start: bytes, kind: str, option: str) -> None:
    """Refuse to write over a file of the user's that none of dgen's commands has written.

    Args:
        path: as the user gave it; what is no regular file, or is empty, may be written to.
        start: how every file of the kind begins.
        kind, option: for the message: "trace", "--trace".

    Raises:
        UsageError: a file with another start.
    """
    where = Path(os.path.expanduser(path))
    try:
        if not where.is_file():
            return
        with where.open("rb") as file:
            found = file.read(len(start))
    except OSError:
        return  # whoever opens it for writing says what is wrong
    if found and found != start:
        raise UsageError(
            f"'{path}' exists and is no {kind}", hint=f"Give {option} another name, or remove the file."
        )
