"""What a chat does with a line that begins with a slash: the commands, their help, and what they say."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgen.cli.values import count_of, line
from dgen.cli.wrapping import columns_of, hanging
from dgen.errors import UsageError
from dgen.settings import SETTINGS, Layer

if TYPE_CHECKING:
    from dgen.chat.conversation import Conversation, Turn
    from dgen.chat.saved import Saved

SOURCE = "/set"


@dataclass(frozen=True, slots=True)
class _Command:
    usage: str
    help: str


COMMANDS = {
    "/help": _Command("/help", "show this"),
    "/retry": _Command("/retry", "ask the last question again, with another seed"),
    "/clear": _Command("/clear", "forget what was said"),
    "/system": _Command("/system [TEXT]", "set the system message; - removes it; alone shows it"),
    "/set": _Command("/set [NAME=VALUE]", "change a setting; NAME= restores it; alone shows all"),
    "/save": _Command("/save FILE", "write messages and settings as JSON"),
    "/load": _Command("/load FILE", "go on with a saved conversation"),
    "/stats": _Command("/stats", "tokens per second, context used"),
    "/exit": _Command("/exit", "end the chat (as Ctrl-D does)"),
}
_SYNONYMS = {"/quit": "/exit", "/bye": "/exit", "/?": "/help"}
_WRITING = (
    'A message of several lines: end a line with \\, or put it between lines of """.',
    "A message that begins with a slash: write two. Ctrl-C cancels a turn.",
)


class Commands:
    """Runs the commands of one conversation.

    Args:
        conversation: what they act on.
        say: takes each line that a command answers.
        warn: takes a warning.
    """

    def __init__(
        self, conversation: Conversation, *, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._conversation = conversation
        self._say, self._warn = say, warn
        self.over = False
        """Whether the chat is to end."""

    def run(self, line: str) -> Turn | None:
        """Run a command; returns the turn that it asks for, if it does.

        Raises:
            DgenError: the command can't be run; the conversation is as before.
        """
        name, _, rest = line.strip().partition(" ")
        name = _SYNONYMS.get(name, name)
        if name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            raise UsageError(
                f"there is no command {name}",
                hint=f"Did you mean {close[0]}?"
                if close
                else "See /help; a message that begins with / takes //.",
            )
        rest = rest.strip()
        if name == "/retry":
            return self._conversation.retry()
        if name == "/set":
            self._set(rest)
        elif name == "/system":
            self._system(rest)
        elif name in ("/save", "/load"):
            if not rest:
                raise UsageError(f"{name} needs the name of a file", hint=COMMANDS[name].usage)
            self._save(rest) if name == "/save" else self._load(rest)
        else:
            self._plain(name)
        return None

    def _plain(self, name: str) -> None:
        if name == "/exit":
            self.over = True
        elif name == "/clear":
            self._conversation.clear()
            self._say("forgotten; the system message and the settings stay")
        else:
            for one in _help_lines() if name == "/help" else self._stats_lines():
                self._say(one)

    def _set(self, rest: str) -> None:
        name, equals, value = rest.partition("=")
        name = name.strip().replace("-", "_")
        if not rest:
            for one in self._setting_lines():
                self._say(one)
            return
        if not equals:
            if name in SETTINGS:
                self._say(self._setting_line(name))
                return
            raise UsageError(f"/set takes NAME=VALUE, not '{rest}'", hint="For example: /set steps=24")
        if value.strip():
            self._conversation.change(Layer(SOURCE, {name: value.strip()}))
        else:
            self._conversation.restore(name)
        if name in SETTINGS:
            self._say(self._setting_line(name))

    def _setting_lines(self) -> Iterator[str]:
        return (self._setting_line(name) for name, setting in SETTINGS.items() if setting.scope == "request")

    def _setting_line(self, name: str) -> str:
        return line(name, self._conversation.resolved)

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "-" else text
        held = self._conversation.system
        self._say("there is no system message" if held is None else f"system: {held}")

    def _save(self, path: str) -> None:
        from dgen.chat.saved import save

        where = save(self._conversation, path)
        self._say(f"saved {count_of(len(self._conversation.messages), 'message')} to {where}")

    def _load(self, path: str) -> None:
        from dgen.chat.saved import read

        self.go_on(read(path))

    def go_on(self, saved: Saved) -> None:
        """Go on with a saved conversation; errors as in `dgen.chat.saved.load`."""
        from dgen.chat.saved import load

        conversation = self._conversation
        load(conversation, saved)
        if saved.messages or saved.unanswered is not None:
            self._say(f"loaded {count_of(len(saved.messages), 'message')} from {saved.path}")
        else:
            self._say(f"loaded the system message from {saved.path}; nothing else was said in it")
        own = conversation.generator.checkpoint.name
        if saved.model is not None and saved.model != own:
            self._warn(f"this conversation was held with {saved.model}, and goes on with {own}")
        if conversation.unanswered is not None:
            self._say("its last question has no answer: /retry asks it")

    def _stats_lines(self) -> Iterator[str]:
        conversation, tally = self._conversation, self._conversation.tally
        rate = f" · {tally.tokens / tally.seconds:.0f} tokens/s" if tally.seconds else ""
        yield (
            f"{count_of(tally.turns, 'turn')} · {count_of(tally.tokens, 'token')} · "
            f"{count_of(tally.canvases, 'canvas', 'canvases')} · {count_of(tally.steps, 'step')}{rate}"
        )
        yield f"{tally.reused} of {tally.prompt_tokens} prompt tokens were held from the turns before"
        used, most = conversation.context, conversation.generator.denoiser.max_context
        if used is None and conversation.messages:
            yield f"context: {most} positions; the next turn will tell how many are used"
        else:
            yield f"context: {used or 0} of {most} positions used"
        if conversation.last is not None:
            yield f"the last turn's seed: {conversation.last.job.request.seed}"


def _help_lines() -> Iterator[str]:
    width = max(len(command.usage) for command in COMMANDS.values())
    columns = columns_of(sys.stderr)
    for command in COMMANDS.values():
        yield from hanging(command.help, f"{command.usage:{width}}  ", columns)
    for text in _WRITING:
        yield from hanging(text, "", columns)
