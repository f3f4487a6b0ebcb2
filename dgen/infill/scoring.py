"""Runs many requests to their end, and scores whole texts: each token as the model sees it with all others in place.

Knows ids and an Engine. A token's score is the log-probability (T = 1) that one denoising step gives it where every
other position of the text is pinned and its own is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dgen.engine.engine import Engine
from dgen.engine.events import Completion, Finished
from dgen.engine.request import Request
from dgen.errors import DgenError

NEAR = 8
"""How far from a gap a token may lie and still be scored."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A text in a canvas: the ids before it, its own, and where its gaps lie (start, end)."""

    prefix: tuple[int, ...]
    ids: tuple[int, ...]
    spots: tuple[tuple[int, int], ...]

    def near(self) -> list[int]:
        """Positions in a gap or near one."""
        return [
            position
            for position in range(len(self.ids))
            if any(start - NEAR <= position < end + NEAR for start, end in self.spots)
        ]


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
        for event in self._engine.run(requests):
            if isinstance(event, Finished):
                done[event.index] = event.completion
                self._progress(doing, len(done), len(requests))
        for completion in done.values():
            self.passes += sum(completion.steps)
            if completion.finish_reason == "error":
                raise DgenError(completion.error or "a request failed", hint=completion.error_hint)
        if len(done) < len(requests) or any(c.finish_reason == "interrupted" for c in done.values()):
            raise KeyboardInterrupt
        return [done[index] for index in range(len(requests))]

    def score(self, texts: Sequence[Placed], like: Request) -> list[dict[int, float]]:
        """By position, the score of each token in or near a gap; `like` says the rest of the requests."""
        asked = [(index, position) for index, text in enumerate(texts) for position in text.near()]
        requests = [self._alone(texts[index], position, like) for index, position in asked]
        scores: list[dict[int, float]] = [{} for _ in texts]
        for (index, position), completion in zip(asked, self.complete(requests, "scoring"), strict=True):
            scores[index][position] = completion.tokens[position].asked[0][1]
        return scores

    def _alone(self, text: Placed, position: int, like: Request) -> Request:
        pins = dict(enumerate(text.ids))
        wanted = pins.pop(position)
        return replace(
            like,
            prompt_ids=text.prefix,
            eos_ids=frozenset(),
            max_tokens=len(text.ids),
            steps=1,
            pins=pins,
            seed_canvas=(),
            logprobs=0,
            logprob_ids=(wanted,),
            logprobs_of="raw",
        )
