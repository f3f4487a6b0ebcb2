"""Reads a trace back into the events that it was written from; the checkpoint is not needed.

A trace may come from anyone: whatever does not hold together is refused with its line number. The last line of a
killed run may be torn; it is left out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dgen.engine.events import Converged, Denoised, Emitted
from dgen.errors import UsageError
from dgen.output.records import Record
from dgen.output.trace import TRACE_VERSION

_HINT = "dgen generate --trace FILE writes a trace."
_MOST_POSITIONS = 1 << 20  # far beyond any canvas; keeps a hostile header from asking for all memory


class TraceVocabulary:
    """The tokens that a trace names, as the Vocabulary that text is made with; unnamed ids add nothing."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._special: dict[int, str] = {}
        self.channel_start: int | None = None
        self.channel_end: int | None = None

    def add(self, token_id: int, name: Any) -> None:
        """Learns one entry of `names`; ValueError for one that is none."""
        if isinstance(name, str):
            self._pieces[token_id] = name.encode()
        elif isinstance(name, list):
            self._pieces[token_id] = bytes(name)
        elif isinstance(name, dict) and isinstance(name.get("special"), str):
            self._special[token_id] = name["special"]
            if name["special"] == "<|channel>":
                self.channel_start = token_id
            elif name["special"] == "<channel|>":
                self.channel_end = token_id
        else:
            raise ValueError(f"a name of token {token_id}")

    def names(self) -> dict[int, Any]:
        """Each entry, as `names` of a trace has it."""
        special: dict[int, Any] = {token_id: {"special": name} for token_id, name in self._special.items()}
        return {**{token_id: _text_or_bytes(piece) for token_id, piece in self._pieces.items()}, **special}

    def piece(self, token_id: int) -> bytes:
        """The bytes that the token adds to text."""
        return self._pieces.get(token_id, b"")

    def token(self, token_id: int) -> str:
        """The token's name: that of a special one, else its text."""
        name = self._special.get(token_id)
        return name if name is not None else self.piece(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token adds nothing to text."""
        return token_id in self._special


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step; `time` in seconds since the trace began, `changed` positions of the argmax canvas."""

    event: Denoised
    time: float
    changed: int


@dataclass(slots=True)
class TracedCanvas:
    """One canvas; `converged` is None where the run ended before."""

    steps: list[Step] = field(default_factory=list)
    converged: Converged | None = None
    time: float = 0.0


@dataclass(slots=True)
class Trace:
    """A whole trace; `end` is None where the run was killed."""

    header: Record
    vocabulary: TraceVocabulary
    canvases: list[TracedCanvas] = field(default_factory=list)
    end: Record | None = None

    @property
    def tokens(self) -> list[Emitted]:
        """The emitted tokens of all converged canvases, those behind a stop string left out."""
        found = [t for canvas in self.canvases if canvas.converged for t in canvas.converged.tokens]
        return found if self.end is None else found[: self.end["tokens"]]


def read_trace(path: str) -> Trace:
    """Read the trace at `path`.

    Raises:
        UsageError: the file can't be read or is no trace; the message names the line.
    """
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"can't read the trace '{path}': {error.strerror}", hint="Check the path.") from None
    return parse_trace(data, name=path)


def parse_trace(data: bytes, *, name: str) -> Trace:
    """As `read_trace`, from the file's bytes."""
    lines = data.split(b"\n")
    torn = lines.pop()  # what follows the last newline: nothing, unless the writer was killed
    if torn.endswith(b"}"):  # or an editor took the newline away
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(torn)
            lines.append(torn)
    trace: Trace | None = None
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line, parse_constant=_refuse_constant)
            if trace is None:
                trace = _begin(record)
            else:
                _add(trace, record)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__} {error}".splitlines()[0][:120]
            raise UsageError(
                f"line {number} of '{name}' is no line of a trace ({reason})", hint=_HINT
            ) from None
    if trace is None:
        raise UsageError(
            f"'{name}' is no trace: {'its first line is torn' if torn else 'it is empty'}", hint=_HINT
        )
    return trace


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _begin(record: Record) -> Trace:
    if record["type"] != "header" or record["trace"] != TRACE_VERSION:
        raise ValueError(f"expected a header of version {TRACE_VERSION}")
    if not 0 < _count(record["canvas_len"]) <= _MOST_POSITIONS:
        raise ValueError("canvas_len")
    for key in ("model", "id", "dgen_version"):
        if not isinstance(record[key], str):
            raise ValueError(key)
    if not isinstance(record["revision"], str | None):
        raise ValueError("revision")
    for key in ("settings", "runtime", "versions"):
        if not isinstance(record[key], dict):
            raise ValueError(key)
    trace = Trace(record, TraceVocabulary())
    _learn(trace, record["names"])
    record["prompt_ids"] = [_count(index) for index in record["prompt_ids"]]
    _count(record["seed"])
    return trace


def _add(trace: Trace, record: Record) -> None:
    if trace.end is not None:
        raise ValueError("a line after the end")
    kind = record["type"]
    if kind == "step":
        _add_step(trace, record)
    elif kind == "canvas":
        _add_canvas(trace, record)
    elif kind == "end":
        steps = [_count(number) for number in record["steps"]]
        reason, error = record["finish_reason"], record["error"]
        if not isinstance(reason, str) or not (error is None or isinstance(error, str)):
            raise ValueError("finish_reason or error")
        trace.end = {
            **record,
            "time": _number(record["time"]),
            "tokens": _count(record["tokens"]),
            "steps": steps,
        }
    else:
        raise ValueError(f"type {kind}")


def _add_step(trace: Trace, record: Record) -> None:
    _learn(trace, record["names"])
    index, number = _count(record["canvas"]), _count(record["step"])
    if number == 0:
        trace.canvases.append(TracedCanvas())
    canvas = trace.canvases[-1]
    if index != len(trace.canvases) - 1 or number != len(canvas.steps) or canvas.converged is not None:
        raise ValueError(f"canvas {index}, step {number} comes out of order")
    length = trace.header["canvas_len"]
    draft = list(canvas.steps[-1].event.draft) if canvas.steps else []
    changed = 0
    for first, ids in record["changes"]:
        end = _count(first) + len(ids)
        if end > length or (draft and end > len(draft)):
            raise ValueError("changes beyond the canvas")
        draft[first:end] = [_count(index) for index in ids]
        changed += len(ids)
    entropy = tuple(_number(value) for value in record["entropy"])
    if len(draft) != length or len(entropy) != length:
        raise ValueError(f"not {length} positions")
    event = Denoised(
        0,
        index,
        number,
        _number(record["temperature"]),
        _number(record["mean_entropy"]),
        _mask(record["accepted"], length),
        tuple(draft),
        entropy,
    )
    canvas.steps.append(Step(event, _number(record["time"]), changed))


def _add_canvas(trace: Trace, record: Record) -> None:
    _learn(trace, record["names"])
    canvas = trace.canvases[-1]
    index = _count(record["canvas"])
    if index != len(trace.canvases) - 1 or canvas.converged is not None or not canvas.steps:
        raise ValueError(f"canvas {index} comes out of order")
    by = record["converged_by"]
    if by not in ("confidence", "steps"):
        raise ValueError("converged_by")
    last = canvas.steps[-1].event
    begun = sum(len(done.converged.tokens) for done in trace.canvases if done.converged)
    tokens = tuple(
        Emitted(_count(token_id), begun + at, index, last.step, last.temperature, last.entropy[at], *found)
        for at, (token_id, found) in enumerate(
            zip(record["tokens"], _logprobs(record["logprobs"], len(record["tokens"])), strict=True)
        )
    )
    canvas.converged = Converged(0, index, len(canvas.steps), by, tokens)
    canvas.time = _number(record["time"])


def _logprobs(found: Mapping[str, Any] | None, count: int) -> Iterator[tuple[Any, ...]]:
    """logprob, rank, top and asked of each emitted token."""
    if found is None:
        yield from [()] * count
        return
    columns = (found["logprob"], found["rank"], found["top"], found["asked"])
    for logprob, rank, top, asked in zip(*columns, strict=True):
        yield _logprob(logprob), _count(rank), _pairs(top), _pairs(asked)


def _pairs(found: Iterable[Any]) -> tuple[tuple[int, float], ...]:
    return tuple((_count(token_id), _logprob(value)) for token_id, value in found)


def _logprob(value: Any) -> float:
    return -math.inf if value is None else _number(value)


def _mask(spans: Iterable[Any], length: int) -> tuple[bool, ...]:
    spans = [(_count(first), _count(end)) for first, end in spans]
    edges = [edge for span in spans for edge in span]
    if any(a > b for a, b in pairwise(edges)) or (edges and edges[-1] > length):
        raise ValueError("accepted")
    mask = [False] * length
    for first, end in spans:
        mask[first:end] = [True] * (end - first)
    return tuple(mask)


def _learn(trace: Trace, names: Mapping[str, Any]) -> None:
    for token_id, name in names.items():
        trace.vocabulary.add(int(token_id), name)


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]} is no number")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{str(value)[:40]} is no count")
    return value
