"""Runs many requests to their end, and scores whole texts: each word as the model sees it with all others in place.

Knows ids and an Engine. A word is opened as a whole, since half of a name or a number would give the other half away:
the scores of its tokens are the log-probabilities (T = 1) that one denoising step gives them where all other positions
of the text are pinned and theirs are noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dgen.engine.engine import Engine
from dgen.engine.events import Completion, Finished
from dgen.engine.request import Request
from dgen.errors import DgenError
from dgen.infill.window import Window

NEAR = 8
"""How far from a gap a word may lie and still be scored, in tokens."""
LONGEST_WORD = 8
"""Tokens that are opened together; text without spaces is cut into such parts."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A text in a canvas: the ids before it, its own, and where its gaps lie (start, end)."""

    prefix: tuple[int, ...]
    ids: tuple[int, ...]
    spots: tuple[tuple[int, int], ...]

    def words(self, begins: Callable[[int], bool]) -> list[range]:
        """The words in a gap or near one, as ranges of positions; `begins` says whether an id begins a word."""
        starts = [p for p, token_id in enumerate(self.ids) if p == 0 or begins(token_id)]
        words = [
            range(first, min(first + LONGEST_WORD, end))
            for start, end in zip(starts, [*starts[1:], len(self.ids)], strict=True)
            for first in range(start, end, LONGEST_WORD)
        ]
        return [
            word
            for word in words
            if any(start - NEAR < word.stop and word.start < end + NEAR for start, end in self.spots)
        ]


def place(window: Window, fills: Sequence[tuple[int, ...]], end: Sequence[int]) -> Placed:
    """The text of a window with its gaps filled, and what ends it."""
    row, spots = list(window.left), []
    for fill, behind in zip(fills, window.between, strict=True):
        spots.append((len(row), len(row) + len(fill)))
        row += [*fill, *behind]
    return Placed(window.prefix, (*row, *end), tuple(spots))


class _Waiting:
    """Requests for an engine, which asks for another once all are done, unless it was interrupted.

    That tells an interrupt in the last step, which finds nothing to end and so shows in no completion.
    """

    def __init__(self, requests: Sequence[Request], done: Mapping[int, Completion]) -> None:
        self._requests, self._left, self._done = requests, iter(requests), done
        self.asked_in_vain = False

    def __iter__(self) -> _Waiting:
        return self

    def __next__(self) -> Request:
        self.asked_in_vain = len(self._done) == len(self._requests)
        return next(self._left)


class Runner:
    """Runs batches of requests on an engine; `passes` counts the decoder passes of all of them."""

    def __init__(self, engine: Engine, progress: Progress | None = None) -> None:
        self._engine = engine
        self._progress = progress or (lambda doing, done, total: None)
        self.passes = 0

    def complete(self, requests: Sequence[Request], doing: str) -> list[Completion]:
        """Their completions, in order.

        Raises:
            DgenError: a request can't be run, or failed.
            KeyboardInterrupt: the engine was interrupted.
        """
        done: dict[int, Completion] = {}
        for request in requests:
            self._engine.check(request)
        waiting = _Waiting(requests, done)
        for event in self._engine.run(waiting):
            if isinstance(event, Finished):
                done[event.index] = event.completion
                self._progress(doing, len(done), len(requests))
        for completion in done.values():
            self.passes += sum(completion.steps)
            if completion.finish_reason == "error":
                raise DgenError(completion.error or "a request failed", hint=completion.error_hint)
        if not waiting.asked_in_vain:
            raise KeyboardInterrupt
        return [done[index] for index in range(len(requests))]

    def score(
        self, texts: Sequence[Placed], like: Request, begins: Callable[[int], bool]
    ) -> list[dict[int, float]]:
        """By position, the score of each token of a word in or near a gap.

        Args:
            like: says the rest of the requests.
            begins: whether an id begins a word.
        """
        asked = [(index, word) for index, text in enumerate(texts) for word in text.words(begins)]
        requests = [self._opened(texts[index], word, like) for index, word in asked]
        scores: list[dict[int, float]] = [{} for _ in texts]
        for (index, word), completion in zip(asked, self.complete(requests, "scoring"), strict=True):
            for position in word:
                known = dict(completion.tokens[position].asked)
                scores[index][position] = known[texts[index].ids[position]]
        return scores

    def _opened(self, text: Placed, word: range, like: Request) -> Request:
        pins = dict(enumerate(text.ids))
        wanted = tuple(dict.fromkeys(pins.pop(position) for position in word))
        return replace(
            like,
            prompt_ids=text.prefix,
            eos_ids=frozenset(),
            max_tokens=len(text.ids),
            steps=1,
            pins=pins,
            seed_canvas=(),
            logprobs=0,
            logprob_ids=wanted,
            logprobs_of="raw",
        )
