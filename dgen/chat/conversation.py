"""Several turns with one model: what was said, what the next prompt is made of, and what a turn changes.

A turn that fails or is cancelled changes nothing, and its question waits for `retry`. Thoughts are shown and then
forgotten: a prompt holds questions and answers alone. Where the engine holds a prefix, each turn reads what is new
since the last one. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dgen.chat.changes import check_changeable
from dgen.engine.events import Event, Finished, Prefilled
from dgen.errors import ContextError, UsageError
from dgen.generator import Generator, Job
from dgen.output.text import Piece
from dgen.prompt import shared_length
from dgen.settings import MAX_SEED, SETTINGS, Layer, Resolved

Message = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """One question on its way to an answer; `replaces` counts the messages that the answer takes the place of."""

    question: str
    history: tuple[Message, ...]
    job: Job
    replaces: int = 0
    reused: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt, those read in earlier turns (`reused`) included."""
        return len(self.job.request.prompt_ids)


@dataclass(slots=True)
class Tally:
    """What all finished turns came to; seconds are those of denoising, commits included."""

    turns: int = 0
    tokens: int = 0
    canvases: int = 0
    steps: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    reused: int = 0

    def add(self, turn: Turn) -> None:
        """Count a finished turn."""
        completion = turn.job.completion
        assert completion is not None
        self.turns += 1
        self.tokens += len(completion.tokens)
        self.canvases += len(completion.steps)
        self.steps += sum(completion.steps)
        self.seconds += turn.job.timing(0.0)["denoise"] or 0.0
        self.prompt_tokens += turn.prompt_tokens
        self.reused += turn.reused


@dataclass(slots=True)
class Conversation:
    """What was said with a model, and how to go on.

    A seed that is set is the first turn's; each one after it, a retry too, takes the next number, so that a
    conversation can be repeated and no two of its turns share their noise.

    Attributes:
        generator: the model; call `generator.engine.hold_prefix()` once to read each turn's news only.
        system: the system message, or None.
        messages: questions and answers, {"role", "content"}, without the system message.
        unanswered: the question of a turn that failed or was cancelled.
        changes: layers of settings over the model's own, the last one winning.
        last: the last finished turn.
    """

    generator: Generator
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    unanswered: str | None = None
    changes: list[Layer] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    last: Turn | None = None
    _asked: int = 0

    @property
    def resolved(self) -> Resolved:
        """The settings of the next turn, with their sources."""
        return self.generator.resolve(*self.changes)

    def change(self, layer: Layer) -> None:
        """Lay settings over those before.

        Raises:
            SettingsError: unknown, out of range, in contradiction to others, or a setting of the whole run.
        """
        check_changeable(layer)
        changes = [*self._changes_without(*layer.values), layer]
        self.generator.resolve(*changes)
        self.changes = changes
        if "seed" in layer.values:
            self._asked = 0

    def restore(self, name: str) -> None:
        """Take the changes of one setting back; errors as in `change`."""
        changes = self._changes_without(name)
        self.generator.resolve(*changes)
        self.changes = changes

    def _changes_without(self, *names: str) -> list[Layer]:
        left = [
            Layer(layer.source, {name: value for name, value in layer.values.items() if name not in names})
            for layer in self.changes
        ]
        return [layer for layer in left if layer.values]

    def clear(self) -> None:
        """Forget what was said; the system message and the settings stay."""
        self.messages, self.unanswered, self.last = [], None, None

    def ask(self, question: str) -> Turn:
        """The next question as a turn; nothing runs or changes before `run`.

        Raises:
            UsageError, SettingsError, ContextError: what can't be run.
        """
        return self._turn(question, self.messages, replaces=0)

    def retry(self) -> Turn:
        """The last question once more, with another seed; its answer takes the place of the one before.

        Raises:
            UsageError: nothing was asked yet, or as in `ask`.
        """
        if self.unanswered is not None:
            return self._turn(self.unanswered, self.messages, replaces=0)
        if [message["role"] for message in self.messages[-2:]] != ["user", "assistant"]:
            raise UsageError("there is no question to ask again", hint="Ask something first.")
        return self._turn(self.messages[-2]["content"], self.messages[:-2], replaces=2)

    def _turn(self, question: str, history: Sequence[Message], *, replaces: int) -> Turn:
        messages = [*history, {"role": "user", "content": question}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        settings = self._settings()
        try:
            job = self.generator.job(messages=messages, **settings)
        except ContextError as full:
            if not history:
                raise
            raise ContextError(
                f"the conversation is full: {full.message}",
                hint="Start anew with /clear, or lower max_tokens with /set.",
            ) from None
        job.request = replace(
            job.request,
            hold=shared_length(
                self.generator.checkpoint.tokenizer,
                job.request.prompt_ids,
                messages=messages,
                think=job.resolved.settings.think,
            ),
        )
        self._asked += 1
        return Turn(question, tuple(history), job, replaces)

    def _settings(self) -> Mapping[str, Any]:
        """What differs from the model's own settings, and the turn's seed."""
        wanted, own = self.resolved.settings, self.generator.resolved.settings
        names = [name for name, setting in SETTINGS.items() if setting.scope == "request"]
        changed = {
            name: getattr(wanted, name) for name in names if getattr(wanted, name) != getattr(own, name)
        }
        if wanted.seed is not None:
            changed["seed"] = (wanted.seed + self._asked) % (MAX_SEED + 1)
        return changed

    def run(self, turn: Turn) -> Iterator[Event | Piece]:
        """The turn's events and pieces of text; what it says is part of the conversation once it is finished.

        Raises:
            UsageError: as in `Generator.run`.
        """
        if not turn.replaces:
            self.unanswered = turn.question
        for item in self.generator.run(turn.job):
            if isinstance(item, Prefilled):
                turn.reused = item.reused
            elif isinstance(item, Finished) and item.completion.finish_reason not in ("error", "interrupted"):
                self._adopt(turn)
            yield item

    def _adopt(self, turn: Turn) -> None:
        self.messages = [
            *turn.history,
            {"role": "user", "content": turn.question},
            {"role": "assistant", "content": turn.job.text.answer},
        ]
        self.unanswered = None
        self.last = turn
        self.tally.add(turn)

    @property
    def context(self) -> int | None:
        """Positions that the conversation takes up after its last answer; None where none was given yet."""
        if self.last is None:
            return None
        answered = sum(channel == "answer" for _, channel in self.last.job.text.tokens)
        return self.last.prompt_tokens + answered
