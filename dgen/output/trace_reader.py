"""Reads a trace back into the events that it was written from; the checkpoint is not needed.

A trace may come from anyone: whatever does not hold together is refused, with its line's number and the field. The last
line of a run that goes on, or was killed, may be torn; it is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from dgen.engine.events import Converged, Denoised, Emitted
from dgen.errors import UsageError
from dgen.output.fields import (
    Refused,
    a_count,
    a_number,
    a_text,
    an_object,
    counts,
    field,
    numbers,
    shown,
    text_or_null,
)
from dgen.output.records import Record, is_json
from dgen.output.trace import TRACE_VERSION
from dgen.output.trace_file import read_bytes
from dgen.output.traced import Step, Trace, TracedCanvas, TraceVocabulary

_HINT = "dgen generate --trace FILE writes a trace."
_MOST_POSITIONS = 1 << 20  # far beyond any canvas; keeps a hostile header from asking for all memory


def read_trace(path: str) -> Trace:
    """Read the trace at `path`, plain or gzipped; `-` is stdin.

    Raises:
        UsageError: the file can't be read or is no trace; the message names the line.
    """
    return parse_trace(read_bytes(path), name="stdin" if path == "-" else path)


def parse_trace(data: bytes, *, name: str) -> Trace:
    """As `read_trace`, from the file's bytes."""
    lines = data.split(b"\n")
    torn = lines.pop()  # what follows the last newline: nothing, unless the writer is at it, or was killed
    if torn.endswith(b"}") and is_json(torn):  # or an editor took the newline away
        lines.append(torn)
        torn = b""
    trace: Trace | None = None
    for number, line in enumerate(lines, start=1):
        try:
            record = _record(line)
            if trace is None:
                trace = _begin(record)
            else:
                _add(trace, record)
        except Refused as refused:
            raise UsageError(
                f"line {number} of '{name}' is no line of a trace: {refused}", hint=_HINT
            ) from None
    if trace is None:
        raise UsageError(
            f"'{name}' is no trace: {'its first line is torn' if torn else 'it is empty'}", hint=_HINT
        )
    trace.torn = len(lines) + 1 if torn else None
    return trace


def _record(line: bytes) -> Record:
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise Refused("it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Refused("it is not JSON" if line.strip() else "it is empty") from None
    if not isinstance(found, dict):
        raise Refused("it is not a JSON object")
    return found


def _refuse_constant(name: str) -> None:
    raise Refused(f"{name} is no number of JSON")


def _begin(record: Record) -> Trace:
    if record.get("type") != "header":
        raise Refused("a trace begins with a header")
    if record.get("trace") != TRACE_VERSION:
        raise Refused(f"expected a header of version {TRACE_VERSION}, not {shown(record.get('trace'))}")
    field(record, "canvas_len", _length, f"from 1 to {_MOST_POSITIONS}")
    for key in ("model", "id", "dgen_version"):
        field(record, key, a_text)
    field(record, "revision", text_or_null)
    for key in ("settings", "runtime", "versions"):
        field(record, key, an_object)
    trace = Trace(record, TraceVocabulary())
    _learn(trace, record)
    record["prompt_ids"] = field(record, "prompt_ids", counts)
    field(record, "seed", a_count)
    return trace


def _add(trace: Trace, record: Record) -> None:
    if trace.end is not None:
        raise Refused("it follows the end")
    kind = field(record, "type", a_text)
    if kind == "step":
        _add_step(trace, record)
    elif kind == "canvas":
        _add_canvas(trace, record)
    elif kind == "end":
        trace.end = {
            **record,
            "finish_reason": field(record, "finish_reason", a_text),
            "error": field(record, "error", text_or_null),
            "time": field(record, "time", a_number),
            "tokens": field(record, "tokens", a_count),
            "steps": field(record, "steps", counts),
        }
    else:
        raise Refused(f"it is of the type {shown(kind)}")


def _add_step(trace: Trace, record: Record) -> None:
    _learn(trace, record)
    index, number = field(record, "canvas", a_count), field(record, "step", a_count)
    if number == 0 and index == len(trace.canvases):
        trace.canvases.append(TracedCanvas())
    canvas = trace.canvases[-1] if trace.canvases else TracedCanvas()
    if index != len(trace.canvases) - 1 or number != len(canvas.steps) or canvas.converged is not None:
        raise Refused(f"canvas {index}, step {number} comes out of order")
    length = trace.header["canvas_len"]
    before = canvas.steps[-1].event.draft if canvas.steps else ()
    draft, changed = field(
        record, "changes", lambda runs: _changed(before, runs, length), _RUNS.format("ids")
    )
    entropy = field(record, "entropy", numbers)
    if len(draft) != length or len(entropy) != length:
        raise Refused(
            f"'changes' and 'entropy' must be of {length} positions, not {len(draft)} and {len(entropy)}"
        )
    event = Denoised(
        0,
        index,
        number,
        field(record, "temperature", a_number),
        field(record, "mean_entropy", a_number),
        field(record, "accepted", lambda spans: _mask(spans, length), _RUNS.format("positions")),
        draft,
        entropy,
    )
    canvas.steps.append(Step(event, field(record, "time", a_number), changed))


_RUNS = "runs of {} within the canvas"


def _changed(before: tuple[int, ...], runs: Any, length: int) -> tuple[tuple[int, ...], int]:
    """The draft after the runs of changes, and how many positions those have."""
    draft, changed = list(before), 0
    for first, ids in runs:
        end = a_count(first) + len(ids)
        if end > length or (draft and end > len(draft)):
            raise ValueError
        draft[first:end] = counts(ids)
        changed += len(ids)
    return tuple(draft), changed


def _add_canvas(trace: Trace, record: Record) -> None:
    _learn(trace, record)
    index = field(record, "canvas", a_count)
    canvas = trace.canvases[-1] if trace.canvases else TracedCanvas()
    if index != len(trace.canvases) - 1 or canvas.converged is not None or not canvas.steps:
        raise Refused(f"canvas {index} comes out of order")
    by = field(record, "converged_by", _cause, "confidence or steps")
    last = canvas.steps[-1].event
    begun = sum(len(done.converged.tokens) for done in trace.canvases if done.converged)
    ids = field(record, "tokens", counts)
    if len(ids) > len(last.entropy):
        raise Refused(f"'tokens' must be at most {len(last.entropy)}, not {len(ids)}")
    found = field(
        record, "logprobs", lambda one: list(_logprobs(one, len(ids))), "log-probabilities of its tokens"
    )
    tokens = tuple(
        Emitted(token_id, begun + at, index, last.step, last.temperature, last.entropy[at], *more)
        for at, (token_id, more) in enumerate(zip(ids, found, strict=True))
    )
    canvas.time = field(record, "time", a_number)
    canvas.converged = Converged(0, index, len(canvas.steps), by, tokens)


def _logprobs(found: Mapping[str, Any] | None, count: int) -> Iterator[tuple[Any, ...]]:
    """logprob, rank, top and asked of each emitted token."""
    if found is None:
        yield from [()] * count
        return
    columns = (found["logprob"], found["rank"], found["top"], found["asked"])
    for _, logprob, rank, top, asked in zip(range(count), *columns, strict=True):
        yield _logprob(logprob), a_count(rank), _pairs(top), _pairs(asked)


def _pairs(found: Any) -> tuple[tuple[int, float], ...]:
    return tuple((a_count(token_id), _logprob(value)) for token_id, value in found)


def _logprob(value: Any) -> float:
    return -math.inf if value is None else a_number(value)


def _mask(spans: Any, length: int) -> tuple[bool, ...]:
    spans = [(a_count(first), a_count(end)) for first, end in spans]
    edges = [edge for span in spans for edge in span]
    if any(a > b for a, b in pairwise(edges)) or (edges and edges[-1] > length):
        raise ValueError
    mask = [False] * length
    for first, end in spans:
        mask[first:end] = [True] * (end - first)
    return tuple(mask)


def _learn(trace: Trace, record: Record) -> None:
    def add(names: Mapping[str, Any]) -> None:
        for token_id, name in names.items():
            trace.vocabulary.add(int(token_id), name)

    field(record, "names", add, "names of tokens by their ids")


def _length(value: Any) -> int:
    if not 0 < a_count(value) <= _MOST_POSITIONS:
        raise ValueError
    return int(value)


def _cause(value: Any) -> Any:
    if value not in ("confidence", "steps"):
        raise ValueError
    return value
