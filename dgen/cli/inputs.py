"""Where a prompt comes from: --prompt, --prompt-file, and stdin that is not a terminal."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from dgen.errors import UsageError

NO_PROMPT_HINT = 'For example: dgen generate --prompt "What is a canvas?", or pipe a text in.'


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The prompt's text; with --prompt as well as stdin: stdin, a blank line, the prompt.

    Raises:
        UsageError: no prompt, two prompts, an unreadable file, or bytes that are not UTF-8.
    """
    if prompt is not None and prompt_file not in (None, "-"):
        raise UsageError("both --prompt and --prompt-file were given", hint="Give one of them.")
    prompt = from_argv(prompt, "--prompt")
    if prompt_file is not None and prompt_file != "-":
        text = _read_file(prompt_file)
    else:
        piped = _read_stdin(asked=prompt_file == "-", has_prompt=prompt is not None)
        if piped is None and prompt is None:
            raise UsageError("there is no prompt", hint=NO_PROMPT_HINT)
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
        return _decode(Path(path).expanduser().read_bytes(), path)
    except OSError as error:
        raise UsageError(
            f"can't read the prompt file '{path}': {error.strerror}", hint="Check the path; - reads stdin."
        ) from None


def _read_stdin(*, asked: bool, has_prompt: bool) -> str | None:
    """What stdin holds; None when it is a terminal, closed, or (beside a prompt) nothing that was piped on purpose."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        mode = None
    if mode is None or sys.stdin is None:
        if asked:
            raise UsageError("stdin is closed", hint=NO_PROMPT_HINT)
        return None
    if os.isatty(0):
        if not asked:
            return None
    elif has_prompt and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        # A service or container may hand down a socket or device that never ends.
        return None
    try:
        with open(0, "rb", closefd=False) as stdin:
            return _decode(stdin.read(), "stdin") or None
    except OSError as error:
        raise UsageError(f"can't read stdin: {error.strerror}", hint=NO_PROMPT_HINT) from None


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
