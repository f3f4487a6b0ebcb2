"""A trace: every denoising step of one request as a line of JSON, written as it happens.

Knows events and what a token id is called; `trace_schema.py` describes the same lines, `trace_reader.py` reads them
back. A trace names each token that occurs in it, so that a reader needs neither checkpoint nor tokenizer. A run that
is killed leaves whole lines and at most one torn one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TextIO

from dgen.engine.events import Converged, Denoised, Emitted, Event, Finished
from dgen.output.records import Record, dumps
from dgen.output.text import Vocabulary

TRACE_VERSION = 1
_DIGITS = 4  # of entropies and log-probabilities: fifty times finer than the usual confidence of 0.005 nats


class TraceWriter:
    """Writes the events of one request.

    Args:
        stream: text stream, flushed after each line. Its errors (OSError) are the caller's.
        vocabulary: names the ids.
        header: what the first line says besides `type`, `trace` and `names`; see `trace_schema.py`.
        clock: seconds; times in the trace count from its making.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        vocabulary: Vocabulary,
        header: Record,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream = stream
        self._vocabulary = vocabulary
        self._clock = clock
        self._started = clock()
        self._named: set[int] = set()
        self._draft: tuple[int, ...] = ()
        self._write(
            {"type": "header", "trace": TRACE_VERSION, **header, "names": self._names(header["prompt_ids"])}
        )

    def see(self, event: Event) -> None:
        """Writes the event's line, if it has one."""
        if isinstance(event, Denoised):
            self._write(self._step(event))
        elif isinstance(event, Converged):
            self._draft = ()
            self._write(self._canvas(event))
        elif isinstance(event, Finished):
            completion = event.completion
            self._write(
                {
                    "type": "end",
                    "time": self._time(),
                    "finish_reason": completion.finish_reason,
                    "error": completion.error,
                    "tokens": len(completion.tokens),
                    "steps": list(completion.steps),
                }
            )

    def _step(self, event: Denoised) -> Record:
        changes = _changes(self._draft, event.draft)
        self._draft = event.draft
        return {
            "type": "step",
            "canvas": event.canvas,
            "step": event.step,
            "time": self._time(),
            "temperature": round(event.temperature, 6),
            "mean_entropy": round(event.mean_entropy, 6),
            "accepted": _spans(event.accepted),
            "entropy": [_short(value) for value in event.entropy],
            "changes": changes,
            "names": self._names(chain.from_iterable(ids for _, ids in changes)),
        }

    def _canvas(self, event: Converged) -> Record:
        tokens = event.tokens
        has_logprobs = bool(tokens) and tokens[0].logprob is not None
        ids = chain(
            (token.token_id for token in tokens),
            (index for token in tokens for index, _ in (*token.top, *token.asked)),
        )
        return {
            "type": "canvas",
            "canvas": event.canvas,
            "time": self._time(),
            "steps": event.steps,
            "converged_by": event.converged_by,
            "tokens": [token.token_id for token in tokens],
            "logprobs": _logprobs(tokens) if has_logprobs else None,
            "names": self._names(ids),
        }

    def _names(self, ids: Iterable[int]) -> dict[str, Any]:
        """Those of the ids that no earlier line has named."""
        new = dict.fromkeys(index for index in ids if index not in self._named)
        self._named.update(new)
        return {str(index): _name(index, self._vocabulary) for index in new}

    def _time(self) -> float:
        return round(self._clock() - self._started, 4)

    def _write(self, line: Record) -> None:
        self._stream.write(dumps(line) + "\n")
        self._stream.flush()


def _name(token_id: int, vocabulary: Vocabulary) -> str | list[int] | dict[str, str]:
    """A text; the bytes of a token that is no text by itself; or the name of one that adds nothing to text."""
    piece = vocabulary.piece(token_id)
    if vocabulary.is_special(token_id) or not piece:
        return {"special": vocabulary.token(token_id)}
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _changes(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Runs of changed positions: where each begins, and its ids; without a canvas before, all of it."""
    if not before:
        return [(0, list(after))]
    runs: list[tuple[int, list[int]]] = []
    end = -1
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            if position != end:
                runs.append((position, []))
            runs[-1][1].append(new)
            end = position + 1
    return runs


def _spans(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of accepted positions, each from its first to behind its last."""
    spans = []
    start = None
    for position, accepted in enumerate(mask):
        if accepted and start is None:
            start = position
        elif not accepted and start is not None:
            spans.append((start, position))
            start = None
    if start is not None:
        spans.append((start, len(mask)))
    return spans


def _logprobs(tokens: Sequence[Emitted]) -> Record:
    def pairs(found: Iterable[tuple[int, float]]) -> list[tuple[int, float | None]]:
        return [(index, _logprob(value)) for index, value in found]

    return {
        "logprob": [_logprob(token.logprob) for token in tokens],
        "rank": [token.rank for token in tokens],
        "top": [pairs(token.top) for token in tokens],
        "asked": [pairs(token.asked) for token in tokens],
    }


def _logprob(value: float | None) -> float | None:
    return None if value is None or value == -math.inf else _short(value)


def _short(value: float) -> float:
    """Rounded, and a zero without its fraction: most of a converged canvas is zeros."""
    return round(value, _DIGITS) or 0
