"""From argv to an exit code: the one place where failures become a line, a hint and a status.

0 done, 1 failed at run time, 2 usage or settings, 3 checkpoint, 4 a batch with failed lines, 128 + the number of the
signal that ended it (129 hung up, 130 Ctrl-C, 143 a plain kill); a closed pipe is 0.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dgen.cli.interruption import Interruption, Terminated, unwind_on_termination
from dgen.cli.sink import ClosedPipe, Sink, standard_streams, wants_color
from dgen.errors import DgenError, OutputError, UsageError, as_ours

# Options of other tools that this model's sampler can't honour: refused with the reason, never ignored.
FOREIGN_OPTIONS = {
    "--temperature": "The temperature is a schedule: set --t-max and --t-min (equal values hold it constant).",
    "--num-beams": "There is no beam search: a canvas is denoised as a whole.",
    "--beam-width": "There is no beam search: a canvas is denoised as a whole.",
    "--repetition-penalty": "Penalties presume left-to-right decoding; a canvas is denoised as a whole.",
    "--presence-penalty": "Penalties presume left-to-right decoding; a canvas is denoised as a whole.",
    "--frequency-penalty": "Penalties presume left-to-right decoding; a canvas is denoised as a whole.",
    "--max-new-tokens": "The name is --max-tokens.",
    "--n": "One answer a call: repeat the command with another --seed.",
    "--stream": "Text is always streamed, canvas by canvas.",
}
_BUG_HINT = "Run again with --debug to see where; this is a bug in dgen."
_EXAMPLE = 'dgen generate --prompt "..."'
_OF_GENERATE = ("-p", "--prompt", "-m", "--model", "--prompt-file", "--input")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit, at once: torch's own tidying up takes a second and can't be interrupted."""
    try:
        code = run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        code = Interruption.exit_code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def run(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code; `--debug` shows the traceback of a failure."""
    unwind_on_termination()
    debug = "--debug" in argv
    command: Any = None
    try:
        import typer

        from dgen.cli.app import app

        command = typer.main.get_command(app)
        _show_flags_plainly(command)
        code = command.main(args=list(argv), prog_name="dgen", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ClosedPipe:
        return 0
    except KeyboardInterrupt:
        return Interruption.exit_code
    except Terminated as ended:
        _say_interrupted(argv)
        return ended.exit_code
    except DgenError as error:
        return _fail(error, debug)
    except BrokenPipeError:
        return _close_quietly()
    except OSError as error:
        _close_quietly()
        what = f" '{error.filename}'" if error.filename else ""
        return _fail(
            OutputError(
                f"the system refused{what}: {error.strerror or error}",
                hint="Check free space and permissions.",
            ),
            debug,
        )
    except Exception as error:
        if type(error).__name__ == "Abort":  # typer's own form of Ctrl-C
            return Interruption.exit_code
        usage = _usage_error(error, command, argv)
        if usage is not None:
            return _fail(usage, debug)
        return _fail(as_ours(error, hint=_BUG_HINT), debug)


def _show_flags_plainly(command: Any, parent: Any = None) -> None:
    """Let help say nothing of a flag's type: newer releases of typer write <bool>, as if it took a value."""
    context = command.context_class(
        command, parent=parent, info_name=command.name, **command.context_settings
    )
    for option in [*command.params, command.get_help_option(context)]:
        if getattr(option, "is_bool_flag", False) and option.metavar is None:
            option.metavar = ""
    for child in getattr(command, "commands", {}).values():
        _show_flags_plainly(child, context)


def _fail(error: DgenError, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    stdout, stderr = standard_streams()
    Sink(stdout, stderr, format="text", quiet=False, verbose=False, color=False).error(error)
    return error.exit_code


def _say_interrupted(argv: Sequence[str]) -> None:
    """The line of a command that had nothing of its own to tell when a signal ended it."""
    stdout, stderr = standard_streams()
    quiet, color = "-q" in argv or "--quiet" in argv, wants_color(stderr)
    Sink(stdout, stderr, quiet=quiet, color=color).note("interrupted")


def _close_quietly() -> int:
    """The reader of --help or --version went away: point stdout elsewhere, so that exit does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _usage_error(error: Exception, command: Any, argv: Sequence[str]) -> UsageError | None:
    """A parser's complaint in dgen's form; None when `error` is something else.

    Told by its shape: newer typer releases carry a parser of their own, older ones use click's.
    """
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        return None
    context: Any = getattr(error, "ctx", None)
    path = _path_of(command, argv) if context is None else context.command_path
    if type(error).__name__ == "NoArgsIsHelpError":
        hint = f"{_EXAMPLE}, or dgen --help." if path == "dgen" else f"See {path} --help."
        return UsageError("no command was given", hint=hint)
    message = " ".join(str(error.format_message()).split())
    hint = f"See {path} --help."
    option = getattr(error, "option_name", None)
    if option and type(error).__name__ == "NoSuchOption":
        message = f"no such option: {option}"
        known = [name for parameter in context.command.params for name in parameter.opts] if context else []
        close = difflib.get_close_matches(option, known, n=1, cutoff=0.75)
        hint = f"Did you mean {close[0]}?" if close else hint
        hint = FOREIGN_OPTIONS.get(option, hint)
        if path == "dgen" and option in _OF_GENERATE:
            hint = f"It is an option of a command: {_EXAMPLE}"
    unknown = re.match(r"(no such command ['\"](.*?)['\"])(\.? did you mean.*|\.)?$", message, re.IGNORECASE)
    if unknown:
        message, asked = unknown[1], unknown[2]
        known = list(getattr(context.command, "commands", {})) if context else []
        begun = [name for name in known if asked and name.startswith(asked)]
        close = difflib.get_close_matches(asked, known, n=1) or begun[:1]
        if close:
            hint = f"Did you mean {path} {close[0]}?"
        elif path == "dgen":
            hint = f"For a prompt: {_EXAMPLE}; dgen --help lists the commands."
    if "unexpected extra argument" in message and path == "dgen generate":
        hint = "Give the prompt as --prompt TEXT, in quotes."
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint)


def _path_of(command: Any, argv: Sequence[str]) -> str:
    """The commands that a command line begins with; a complaint may come without them."""
    path = ["dgen"]
    for word in argv:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path.append(word)
    return " ".join(path)
