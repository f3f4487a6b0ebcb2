"""The loop of a chat: a message, its turn, the next; what a signal does to it; how it ends.

An error is a line and a hint, and the next message is asked for. Only what nobody can read any more (stdout that
can't be written) and signals end it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from dgen.chat.conversation import Conversation
from dgen.cli.account import follow, summary, tell_model
from dgen.cli.commands import Commands
from dgen.cli.interruption import Interruption, Terminated
from dgen.cli.lines import PipedLines, TypedLines, read_message, silent_keys
from dgen.cli.progress import Progress
from dgen.cli.sink import ClosedPipe, Sink
from dgen.errors import DgenError, OutputError, as_ours

if TYPE_CHECKING:
    from dgen.chat.conversation import Turn
    from dgen.chat.saved import Saved
    from dgen.cli.watch import Watch
    from dgen.generator import Generator

_CANCELLED = "cancelled; the conversation is as before, and /retry asks again"

_BUG_HINT = "The conversation is as before; --debug shows where. This is a bug in dgen."


class Talk:
    """One run of the chat.

    Args:
        generator: the model, which holds a prefix.
        lines: where messages come from.
        sink: where answers and notes go; `replies` takes what commands say.
        watch: makes the canvas of a turn.
        debug: show the traceback of a failure.
    """

    def __init__(
        self,
        generator: Generator,
        lines: TypedLines | PipedLines,
        sink: Sink,
        replies: Sink,
        *,
        watch: Callable[[], Watch],
        debug: bool = False,
    ) -> None:
        self._conversation = Conversation(generator)
        self._commands = Commands(self._conversation, say=replies.note, warn=sink.warn)
        self._generator, self._lines = generator, lines
        self._sink, self._replies, self._watch, self._debug = sink, replies, watch, debug
        self._typed = isinstance(lines, TypedLines)
        self._failed = False
        self._cancelled = False  # the last thing that happened was a Ctrl-C
        self._turns = 0

    def run(self, *, system: str | None = None, load: Saved | None = None) -> int:
        """Talk until there is no more to say; returns the exit code.

        Raises:
            DgenError: the settings of `load` contradict the model's, or stdout can't be written.
        """
        if load is not None:
            self._commands.go_on(load)
        if system is not None:
            self._conversation.system = system if system.strip() else None
        tell_model(self._sink, self._generator.resolved)
        if self._typed:
            self._sink.note("/help lists the commands; Ctrl-D ends")
        while not self._commands.over:
            try:
                message = read_message(self._lines)
            except KeyboardInterrupt:
                if self._quits():
                    return Interruption.exit_code
                continue
            except DgenError as error:
                self._fail(error)
                continue
            if message is None:
                if self._typed:
                    self._newline()
                break
            self._cancelled = False
            if not self._answered(message):
                return Interruption.exit_code
        return 1 if self._failed and not self._typed else 0  # a script wants to know, a person has seen it

    def _answered(self, message: str) -> bool:
        """Do what the message asks for; False where that was interrupted and nobody is there to go on."""
        try:
            self._hear(message)
        except KeyboardInterrupt:  # in a command, or a second one in a turn
            if not self._typed:
                return False
            self._sink.end_lines()
            self._cancel()
        except OutputError:  # nobody can read an answer any more
            raise
        except DgenError as error:
            self._fail(error)
        except (ClosedPipe, OSError):
            raise
        except Exception as error:  # whatever goes wrong in a turn, what was said before is worth keeping
            self._fail(as_ours(error, hint=_BUG_HINT))
        return True

    def _quits(self) -> bool:
        """What a Ctrl-C at the prompt means: drop the line, or quit where there is none and it is the second."""
        if not isinstance(self._lines, TypedLines):
            return True
        self._newline()
        if self._lines.typed:
            self._cancelled = False
            return False
        again, self._cancelled = self._cancelled, True
        if not again:
            self._sink.note("Ctrl-C again quits, as Ctrl-D does")
        return again

    def _cancel(self) -> None:
        self._cancelled = True
        self._sink.note(_CANCELLED)

    def _fail(self, error: DgenError) -> None:
        if self._debug:
            import traceback

            traceback.print_exc()
        self._failed = True
        self._sink.error(error)

    def _newline(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _hear(self, message: str) -> None:
        if not message.strip():
            return
        if message.startswith("//"):
            turn: Turn | None = self._conversation.ask(message[1:])
        elif message.startswith("/"):
            turn = self._commands.run(message)
        else:
            turn = self._conversation.ask(message)
        if turn is not None:
            with silent_keys():
                self._answer(turn)

    def _answer(self, turn: Turn) -> None:
        sink, generator, job = self._sink, self._generator, turn.job
        sink.begin(
            vocabulary=generator.checkpoint.vocabulary,
            request_id=job.request_id,
            index=self._turns,
            logprobs_of=job.request.logprobs_of,
        )
        self._turns += 1
        with (
            self._watch() as watch,
            Progress(sink) as progress,
            Interruption(generator.engine.interrupt) as interruption,
        ):
            watch.begin(generator, job, is_over=lambda: interruption.happened)
            follow(self._conversation.run(turn), sink, watch, progress, prompt_tokens=turn.prompt_tokens)
        completion = job.completion
        assert completion is not None
        sink.completion(generator.record(job))
        if completion.finish_reason == "error":
            raise DgenError(completion.error or "the turn failed", hint=completion.error_hint)
        cancelled = completion.finish_reason == "interrupted"
        if not cancelled:
            sink.note(summary(job))
        if interruption.happened:
            self._heed(interruption, cancelled)

    def _heed(self, interruption: Interruption, cancelled: bool) -> None:
        """Do what the signal asked for that came during a turn; too late a Ctrl-C asks for nothing."""
        if interruption.exit_code != Interruption.exit_code:
            raise Terminated(interruption.exit_code - 128)
        if not self._typed:
            raise KeyboardInterrupt
        if cancelled:
            self._cancel()
        else:
            # The engine keeps an interrupt that finds nothing to end for its next run: let that be an empty one.
            for _ in self._generator.engine.run([]):
                pass
