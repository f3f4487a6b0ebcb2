"""From emitted tokens to text: incremental UTF-8, stop strings, and the split of thoughts from the answer.

Knows bytes, token ids and what is special; knows no model, no canvas border and no terminal. Whatever way a
token sequence is cut into pushes, the text, the channels and the kept tokens are the same. Text leaves only
once it is certain: no half of a character, no part of a stop string.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from dgen.engine.events import Emitted
from dgen.errors import SettingsError

Channel = Literal["answer", "reasoning"]

_THOUGHT = "thought"


class Vocabulary(Protocol):
    """What this room needs to know of a tokenizer."""

    @property
    def channel_start(self) -> int | None: ...

    @property
    def channel_end(self) -> int | None: ...

    def piece(self, token_id: int, /) -> bytes: ...

    def token(self, token_id: int, /) -> str: ...

    def is_special(self, token_id: int, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one channel that became certain, and the tokens released with it; either may be empty.

    A token is released as soon as it is sure to be kept, which may be before the last of its text is.
    """

    text: str
    channel: Channel
    tokens: tuple[Emitted, ...]


@dataclass(slots=True)
class _Token:
    """A token not released yet; `channel` is None while the label that decides it is incomplete."""

    emitted: Emitted
    start: int  # bytes of text before its own
    size: int
    channel: Channel | None

    def lies_before(self, boundary: int) -> bool:
        # A token without bytes at the boundary itself came before whatever starts there.
        return self.start < boundary or (self.size == 0 and self.start == boundary)


class _Char(NamedTuple):
    start: int  # bytes of text before its first
    text: str
    channel: Channel


class TextStream:
    """Turns one request's emitted tokens into pieces of text.

    A channel opens at the vocabulary's `channel_start`; its label (up to the first newline) is never shown.
    What follows label `thought` is reasoning until `channel_end`, any other channel is part of the answer.
    Special tokens add no text. Stop strings are looked for in the answer alone, which is cut before the match
    that starts first; while one that starts earlier is still possible, the decision waits for the text that
    makes it certain, so read `stopped` after `finish` too.

    Args:
        vocabulary: bytes and kind of each token id.
        stops: strings that end the answer; none may be empty.
        split_reasoning: False leaves thoughts, without their label, in the answer.

    Raises:
        SettingsError: a stop string is empty.
    """

    def __init__(
        self, vocabulary: Vocabulary, stops: Sequence[str] = (), *, split_reasoning: bool = True
    ) -> None:
        if "" in stops:
            raise SettingsError(
                f"stop string {list(stops).index('') + 1} of {len(stops)} is empty",
                hint="Give --stop some text, or leave it out.",
            )
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._split = split_reasoning
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._bytes = 0  # bytes of text taken
        self._incomplete = 0  # how many of them wait in the decoder
        self._channel: Channel = "answer"
        self._label: list[str] | None = None  # characters of a label whose newline has not come
        self._tokens: deque[_Token] = deque()
        self._chars: deque[_Char] = deque()
        self._released: list[tuple[Emitted, Channel]] = []
        self._text: dict[Channel, list[str]] = {"answer": [], "reasoning": []}
        self._finished = False
        self._stopped = False
        self._taken = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stopped

    @property
    def kept(self) -> int:
        """How many pushed tokens belong to the output: all, or on a stop those begun before its match."""
        return len(self._released) if self._stopped else self._taken

    @property
    def answer(self) -> str:
        """The answer released so far."""
        return "".join(self._text["answer"])

    @property
    def reasoning(self) -> str:
        """The reasoning released so far."""
        return "".join(self._text["reasoning"])

    @property
    def tokens(self) -> tuple[tuple[Emitted, Channel], ...]:
        """The tokens released so far with their channels; markers and labels belong to what they delimit."""
        return tuple(self._released)

    def push(self, tokens: Sequence[Emitted]) -> list[Piece]:
        """Takes the next tokens; returns what became certain. After a stop: nothing."""
        if self._stopped:
            return []
        assert not self._finished, "push after finish"
        for emitted in tokens:
            self._take(emitted)
        return self._release()

    def finish(self) -> list[Piece]:
        """Says that no token follows; returns the rest. An incomplete character becomes U+FFFD."""
        if self._stopped or self._finished:
            return []
        self._finished = True
        self._flush()
        self._settle_label()
        return self._release()

    def _take(self, emitted: Emitted) -> None:
        self._taken += 1
        token_id = emitted.token_id
        opens, closes = token_id == self._vocabulary.channel_start, token_id == self._vocabulary.channel_end
        if not (opens or closes or self._vocabulary.is_special(token_id)):
            data = self._vocabulary.piece(token_id)
            self._hold(emitted, len(data))
            self._decode(data)
            return
        self._flush()
        if opens or closes:
            self._settle_label()
        if opens:
            self._label = []
        self._hold(emitted, 0)
        if closes:
            self._channel = "answer"

    def _hold(self, emitted: Emitted, size: int) -> None:
        channel = self._channel if self._label is None else None
        self._tokens.append(_Token(emitted, self._bytes, size, channel))

    def _decode(self, data: bytes) -> None:
        if not self._incomplete and data.isascii():
            for character in data.decode("ascii"):
                self._put(character, self._bytes)
                self._bytes += 1
            return
        for value in data:  # one at a time, to know where each character starts
            first = self._bytes - self._incomplete
            decoded = self._decoder.decode(bytes((value,)))
            self._incomplete = len(self._decoder.getstate()[0])
            # Of several characters the last is this byte's own, unless the byte begins another. Those before
            # are what it broke off: one, or two for half a surrogate, which the decoder holds until then.
            own = len(decoded) - 1 if len(decoded) > 1 and not self._incomplete else None
            for at, character in enumerate(decoded):
                self._put(character, self._bytes if at == own else first + at)
            self._bytes += 1

    def _flush(self) -> None:
        first = self._bytes - self._incomplete
        for at, character in enumerate(self._decoder.decode(b"", final=True)):
            self._put(character, first + at)
        self._decoder.reset()
        self._incomplete = 0

    def _put(self, character: str, start: int) -> None:
        if self._label is None:
            self._chars.append(_Char(start, character, self._channel))
        elif character == "\n":
            self._settle_label()
        else:
            self._label.append(character)

    def _settle_label(self) -> None:
        """Decides the open channel by its label, for the tokens that wait for it too."""
        if self._label is None:
            return
        is_thought = "".join(self._label).strip() == _THOUGHT
        self._channel = "reasoning" if is_thought and self._split else "answer"
        self._label = None
        for token in self._tokens:
            token.channel = token.channel or self._channel

    def _boundary(self) -> int:
        """Byte before which everything is certain; finds the stop."""
        answer = [char for char in self._chars if char.channel == "answer"]
        text = "".join(char.text for char in answer)
        match = min((at for at in map(text.find, self._stops) if at >= 0), default=None)
        partial = None if self._finished else _first_partial(text, self._stops)
        if match is not None and (partial is None or match <= partial):
            self._stopped = True
            return answer[match].start
        if partial is not None:
            return answer[partial].start
        return self._bytes - self._incomplete

    def _release(self) -> list[Piece]:
        boundary = self._boundary()
        runs: list[_Run] = []
        while True:
            token = self._tokens[0] if self._tokens else None
            channel = token.channel if token is not None and token.lies_before(boundary) else None
            char = self._chars[0] if self._chars and self._chars[0].start < boundary else None
            if token and channel and (char is None or token.start <= char.start):
                self._tokens.popleft()
                self._released.append((token.emitted, channel))
                _run_of(runs, channel).tokens.append(token.emitted)
            elif char is not None:
                self._chars.popleft()
                _run_of(runs, char.channel).text.append(char.text)
            else:
                break
        if self._stopped:
            self._tokens.clear()
            self._chars.clear()
        pieces = [Piece("".join(run.text), run.channel, tuple(run.tokens)) for run in runs]
        for piece in pieces:
            self._text[piece.channel].append(piece.text)
        return pieces


class _Run(NamedTuple):
    channel: Channel
    text: list[str]
    tokens: list[Emitted]


def _run_of(runs: list[_Run], channel: Channel) -> _Run:
    """The last run, or a new one where the channel changes."""
    if not runs or runs[-1].channel != channel:
        runs.append(_Run(channel, [], []))
    return runs[-1]


def _first_partial(text: str, stops: Sequence[str]) -> int | None:
    """Where the longest tail of `text` that a stop string begins with starts."""
    longest = max(map(len, stops), default=0)
    for at in range(max(0, len(text) - longest), len(text)):
        tail = text[at:]
        if any(stop.startswith(tail) for stop in stops):
            return at
    return None
