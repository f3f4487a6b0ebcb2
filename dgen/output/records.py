"""What a machine reads: token and completion records as plain dicts, and their one line of strict JSON.

Knows events and text, decodes nothing itself and writes nowhere. A line holds no NaN, no Infinity, no lone
surrogate and no character that any reader takes for a line end; `schema.py` describes the same fields.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from dgen.engine.events import Completion, Emitted
from dgen.errors import NumericalError
from dgen.output.text import Channel, TextStream, Vocabulary

LogprobsOf = Literal["tempered", "raw"]
Record = dict[str, Any]

# Legal in JSON strings, but line ends to some readers (U+0085, U+2028, U+2029) or controls to a terminal.
_ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def token_entry(
    emitted: Emitted, *, vocabulary: Vocabulary, channel: Channel, logprobs_of: LogprobsOf
) -> Record:
    """One emitted token as it stands in a completion's `logprobs`.

    Log-probabilities are natural, entropy is in nats at `temperature`. Where none were stashed, `logprob`,
    `rank` and `logprobs_of` are null; a log-probability of -inf is null too, but has a rank.

    Raises:
        NumericalError: a number is NaN or +inf.
    """
    token_id = emitted.token_id
    return {
        "position": emitted.position,
        "canvas": emitted.canvas,
        "step": emitted.step,
        **_named(token_id, vocabulary),
        "channel": channel,
        "logprob": None if emitted.logprob is None else _logprob(emitted.logprob, token_id, emitted.position),
        "rank": emitted.rank,
        "entropy": _finite(emitted.entropy, "entropy", emitted.position),
        "temperature": _finite(emitted.temperature, "temperature", emitted.position),
        "logprobs_of": None if emitted.logprob is None else logprobs_of,
        "top_logprobs": _pairs(emitted.top, vocabulary, emitted.position),
        "asked_logprobs": _pairs(emitted.asked, vocabulary, emitted.position),
    }


def token_record(
    emitted: Emitted,
    *,
    vocabulary: Vocabulary,
    channel: Channel,
    request_id: str,
    index: int,
    logprobs_of: LogprobsOf,
) -> Record:
    """The JSONL line of one emitted token: `token_entry` and whose it is; errors as there."""
    entry = token_entry(emitted, vocabulary=vocabulary, channel=channel, logprobs_of=logprobs_of)
    return {"type": "token", "id": request_id, "index": index, **entry}


def token_entries(
    tokens: Iterable[tuple[Emitted, Channel]], *, vocabulary: Vocabulary, logprobs_of: LogprobsOf
) -> list[Record]:
    """The `logprobs` of a completion from `TextStream.tokens`; errors as in `token_entry`."""
    return [
        token_entry(emitted, vocabulary=vocabulary, channel=channel, logprobs_of=logprobs_of)
        for emitted, channel in tokens
    ]


def completion_record(
    completion: Completion,
    *,
    stream: TextStream,
    request_id: str,
    model: str,
    revision: str | None,
    settings: Mapping[str, object],
    timing: Mapping[str, float | None],
    runtime: Mapping[str, str],
    dgen_version: str,
    vocabulary: Vocabulary | None = None,
    logprobs_of: LogprobsOf = "tempered",
) -> Record:
    """The record of a finished request.

    Args:
        completion: what the engine produced.
        stream: the request's text, finished. Where it stopped, the finish reason is `stop`, whatever ended
            the loop, and only its kept tokens count.
        request_id: the request's name in its input, or one that the caller gives.
        model, revision: what was loaded; no revision for a folder.
        settings: every setting by name; `settings_hash` leaves the seed out.
        timing: seconds by name; None for what did not happen.
        runtime: what ran it: device, dtype, denoiser and sampler kernels, by name.
        dgen_version: version of this program.
        vocabulary: names the tokens of `logprobs`; None leaves those null.
        logprobs_of: distribution of the log-probabilities.

    Raises:
        NumericalError: as in `token_entry`.
    """
    failed = completion.finish_reason == "error"
    passes = sum(completion.steps)
    return {
        "type": "completion",
        "id": request_id,
        "index": completion.index,
        "text": stream.answer,
        "reasoning": stream.reasoning,
        "finish_reason": "stop" if stream.stopped and not failed else completion.finish_reason,
        "error": completion.error if failed else None,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": stream.kept,
            "canvases": len(completion.steps),
            "denoising_steps": passes,
            "steps_per_canvas": list(completion.steps),
            "converged_by": list(completion.converged_by),
            "tokens_per_forward": stream.kept / passes if passes else 0.0,
        },
        "timing": dict(timing),
        "seed": completion.seed,
        "settings": plain(settings),
        "settings_hash": settings_hash(settings),
        "model": model,
        "revision": revision,
        "runtime": dict(runtime),
        "dgen_version": dgen_version,
        "logprobs": None
        if vocabulary is None
        else token_entries(stream.tokens, vocabulary=vocabulary, logprobs_of=logprobs_of),
    }


def settings_hash(settings: Mapping[str, object]) -> str:
    """SHA-256 (hex) of the settings as canonical JSON: sorted keys, no spaces, ASCII.

    The seed is left out, and so is what only chooses what is reported (`logprobs` and its kin).
    """
    kept = plain({n: value for n, value in settings.items() if n != "seed" and not n.startswith("logprob")})
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def plain(value: object) -> Any:
    """A setting as JSON data: tuples as lists, sets sorted, keys as strings, non-finite floats by name."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, AbstractSet):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def is_json(text: bytes) -> bool:
    """Whether the bytes are a whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def dumps(record: Record) -> str:
    """One line of strict JSON without its newline; lone surrogates become U+FFFD.

    Raises:
        ValueError: the record holds NaN or an infinity.
    """
    line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    line = _SURROGATE.sub("\ufffd", line)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def _named(token_id: int, vocabulary: Vocabulary) -> Record:
    return {
        "token": vocabulary.token(token_id),
        "token_id": token_id,
        "bytes": list(vocabulary.piece(token_id)),
    }


def _pairs(pairs: Iterable[tuple[int, float]], vocabulary: Vocabulary, position: int) -> list[Record]:
    return [
        {**_named(token_id, vocabulary), "logprob": _logprob(logprob, token_id, position)}
        for token_id, logprob in pairs
    ]


def _logprob(value: float, token_id: int, position: int) -> float | None:
    if value == -math.inf:
        return None
    return _finite(value, f"log-probability of token {token_id}", position)


def _finite(value: float, name: str, position: int) -> float:
    if not math.isfinite(value):
        raise NumericalError(
            f"{name} at position {position} is {value}",
            hint="Please report this: a checked distribution has none.",
        )
    return float(value)
