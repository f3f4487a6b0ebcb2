"""Where a prompt comes from: --prompt, --prompt-file, and stdin that is not a terminal."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from dgen.errors import UsageError

NO_PROMPT_HINT = 'For example: dgen generate --prompt "What is a canvas?", or pipe a text in.'


def read_prompt(
    prompt: str | None, prompt_file: str | None, *, waiting: Callable[[str], None], hint: str = NO_PROMPT_HINT
) -> str:
    """The prompt's text; with --prompt as well as stdin: stdin, a blank line, the prompt.

    Args:
        waiting: told so when stdin keeps its reader waiting.
        hint: what to try where there is none.

    Raises:
        UsageError: no prompt, two prompts, an unreadable file, or bytes that are not UTF-8.
    """
    if prompt is not None and prompt_file not in (None, "-"):
        raise UsageError("both --prompt and --prompt-file were given", hint="Give one of them.")
    prompt = from_argv(prompt, "--prompt")
    if prompt_file is not None and prompt_file != "-":
        text = _read_file(prompt_file)
    else:
        piped = _read_stdin(
            asked=prompt_file == "-", has_prompt=prompt is not None, waiting=waiting, hint=hint
        )
        if piped is None and prompt is None:
            raise UsageError("there is no prompt", hint=hint)
        text = "\n\n".join(part for part in (piped, prompt) if part)
    return text


def from_argv(value: str | None, name: str) -> str | None:
    """A text of the command line as UTF-8, in whatever locale Python has decoded it.

    Raises:
        UsageError: its bytes are not UTF-8.
    """
    return None if value is None else _decode_strictly(os.fsencode(value), name)


def _read_file(path: str) -> str:
    try:
        return _decode(Path(os.path.expanduser(path)).read_bytes(), path)
    except OSError as error:
        raise UsageError(
            f"can't read the file '{path}': {error.strerror}", hint="Check the path; - reads stdin."
        ) from None


def _read_stdin(*, asked: bool, has_prompt: bool, waiting: Callable[[str], None], hint: str) -> str | None:
    """What stdin holds; None when it is a terminal, closed, or (beside a prompt) nothing that was piped on purpose."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        mode = None
    if mode is None or sys.stdin is None:
        if asked:
            raise UsageError("stdin is closed", hint=hint)
        return None
    if os.isatty(0):
        if not asked:
            return None
    elif has_prompt and not _is_meant_for_us(mode):
        return None
    try:
        if not select.select([0], [], [], 1.0)[0]:
            waiting(
                "Type the prompt; end with Ctrl-D."
                if os.isatty(0)
                else "Reading stdin; </dev/null leaves it out."
            )
        with open(0, "rb", closefd=False) as stdin:
            return _decode(stdin.read(), "stdin") or None
    except OSError as error:
        raise UsageError(f"can't read stdin: {error.strerror}", hint=hint) from None


def _is_meant_for_us(mode: int) -> bool:
    """Whether stdin was handed over to go with --prompt, rather than merely inherited.

    A service or container may hand down a socket or device that never ends; a file that is read in part already belongs
    to a shell loop (`while read ...; done < file`), and taking the rest would end it after one round.
    """
    if stat.S_ISREG(mode):
        return os.lseek(0, 0, os.SEEK_CUR) == 0
    return stat.S_ISFIFO(mode)


def _decode(data: bytes, name: str) -> str:
    # The newline that ends a text file is not part of the prompt.
    return _decode_strictly(data, name).removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def _decode_strictly(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}",
            hint="Convert it to UTF-8.",
        ) from None
