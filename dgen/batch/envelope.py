"""OpenAI's batch format: what its request lines may ask, and the envelope that its answers come in.

A body's fields mean what they mean there; dgen's own settings may stand beside them under their own names.
What this model can't honour is refused by name, with the reason, unless its value asks for nothing.
"""

from __future__ import annotations

import difflib
import hashlib
import time
from collections.abc import Mapping
from typing import Any

from dgen.batch.lines import LineError
from dgen.output.records import Record
from dgen.settings import SETTINGS

URL = "/v1/chat/completions"
NO_PROBABILITY = -9999.0
"""How this format writes the log-probability of what can't be."""

_OUTER = ("custom_id", "method", "url", "body")
_OWN = tuple(n for n, setting in SETTINGS.items() if setting.scope == "request" and n != "logprobs")
_MAPPED = (
    *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
    *("logprobs", "top_logprobs", "n", "stream", "response_format", "user", "metadata", "store"),
)
_MAX_TOP = 20
_PENALTY = "penalties presume left-to-right decoding, and a canvas is denoised as a whole"
_REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    # name: why not, and the values that ask for nothing
    "frequency_penalty": (_PENALTY, (0,)),
    "presence_penalty": (_PENALTY, (0,)),
    "logit_bias": ("dgen does not bias logits", ({},)),
    "tools": ("dgen calls no tools", ([],)),
    "tool_choice": ("dgen calls no tools", ("none", "auto")),
    "parallel_tool_calls": ("dgen calls no tools", (True, False)),
    "functions": ("dgen calls no tools", ([],)),
    "function_call": ("dgen calls no tools", ("none", "auto")),
    "modalities": ("dgen writes text alone", (["text"],)),
    "audio": ("dgen writes text alone", ()),
    "prediction": ("give the canvas no prediction here", ()),
    "stream_options": ("a batch is not streamed", ()),
    "reasoning_effort": ("use think (true or false)", ()),
}


def is_one(fields: Mapping[str, Any]) -> bool:
    """Whether a line is meant as an OpenAI batch line."""
    return "custom_id" in fields or "body" in fields


def read(fields: Mapping[str, Any], *, model: str) -> dict[str, Any]:
    """The line in dgen's own fields: id, messages and settings.

    Args:
        model: the name that the body may give; any other is refused.

    Raises:
        LineError: a field that is missing, unknown, of the wrong kind, or asks for what dgen can't do.
    """
    for name in fields:
        if name not in _OUTER:
            raise LineError(f"unknown field '{name}' beside custom_id{_nearest(name, _OUTER)}")
    name = id_of(fields)
    if fields.get("method", "POST") != "POST":
        raise LineError(f"the method must be POST, not {fields['method']!r}")
    if fields.get("url", URL) != URL:
        raise LineError(f"the url must be {URL}, not {fields['url']!r}")
    body = fields.get("body")
    if not isinstance(body, Mapping):
        raise LineError("the body must be an object")
    body = {name: value for name, value in body.items() if value is not None}
    _check(body, model)
    own = {name: value for name, value in body.items() if name in _OWN}
    _put_lengths(own, body)
    _put_temperature(own, body)
    _put_logprobs(own, body)
    return {**own, "id": name, "messages": body.get("messages")}


def id_of(fields: Mapping[str, Any]) -> str:
    """What a line is called; LineError where its custom_id is none."""
    name = fields.get("custom_id")
    if not isinstance(name, str) or not name:
        raise LineError("custom_id must be a non-empty text")
    return name


def _check(body: Mapping[str, Any], model: str) -> None:
    for name, value in body.items():
        if name in _REFUSED:
            reason, harmless = _REFUSED[name]
            # Not by `in`, for which 0 is False and 1 is True.
            if not any(value == one and type(value) in (type(one), float) for one in harmless):
                raise LineError(f"{name} can't be honoured: {reason}")
        elif name not in _MAPPED and name not in _OWN:
            close = _nearest(name, (*_MAPPED, *_OWN))
            raise LineError(f"unknown field '{name}' in the body{close}")
    if body.get("model", model) != model:
        raise LineError(f"the body asks for the model {body['model']!r}, and this run has {model!r}")
    if body.get("n", 1) != 1 or isinstance(body.get("n"), bool):
        raise LineError("n must be 1: repeat the line under another custom_id for more answers")
    if body.get("stream", False) is not False:
        raise LineError("a batch is not streamed: leave stream out")
    wanted = body.get("response_format", {"type": "text"})
    if wanted != {"type": "text"}:
        raise LineError("response_format can't be honoured: dgen does not constrain its text")


def _put_lengths(own: dict[str, Any], body: Mapping[str, Any]) -> None:
    if "max_completion_tokens" not in body:
        return
    length = body["max_completion_tokens"]
    if body.get("max_tokens", length) != length:
        raise LineError("max_tokens and max_completion_tokens differ: leave one out")
    own["max_tokens"] = length


def _put_temperature(own: dict[str, Any], body: Mapping[str, Any]) -> None:
    """One temperature for all steps; the format knows no schedule."""
    if "temperature" not in body:
        return
    if "t_min" in body or "t_max" in body or "greedy" in body:
        raise LineError("temperature, and t_min, t_max or greedy: leave one out")
    value = body["temperature"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise LineError(f"temperature must be a number from 0 to 2, not {value!r}")
    own.update(t_min=value, t_max=value)


def _put_logprobs(own: dict[str, Any], body: Mapping[str, Any]) -> None:
    wanted, top = body.get("logprobs", False), body.get("top_logprobs")
    if not isinstance(wanted, bool):
        raise LineError("logprobs must be true or false; how many is top_logprobs")
    if top is not None and not wanted:
        raise LineError("top_logprobs needs logprobs to be true")
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= _MAX_TOP):
        raise LineError(f"top_logprobs must be a whole number from 0 to {_MAX_TOP}, not {top!r}")
    if wanted:
        own["logprobs"] = top or 0


def wrap(record: Record, *, created: int | None = None) -> Record:
    """A completion record of dgen's own as OpenAI's response line; its other fields are in the body's `dgen`.

    A failed one has a status code of 400 (the request's fault) or 500 and says why in `error` as well.

    Args:
        record: with its `request_hash`, which names the request; where that is None, the id does.
        created: seconds since 1970; now, where not given.
    """
    name = record["id"]
    digest = record["request_hash"] or hashlib.sha256(name.encode()).hexdigest()
    failed = record["finish_reason"] == "error"
    inside = {key: value for key, value in record.items() if key not in ("type", "text", "logprobs")}
    if failed:
        status = 500 if record["usage"]["prompt_tokens"] else 400
        kind = "server_error" if status == 500 else "invalid_request_error"
        error = {"message": record["error"], "type": kind, "param": None, "code": None}
        body: Record = {"error": error, "dgen": inside}
    else:
        status = 200
        usage = record["usage"]
        body = {
            "id": f"chatcmpl-{digest[:24]}",
            "object": "chat.completion",
            "created": int(time.time()) if created is None else created,
            "model": record["model"],
            "system_fingerprint": f"fp_{record['settings_hash'][:10]}",
            "choices": [_choice(record)],
            "usage": {
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
            },
            "dgen": inside,
        }
    return {
        "id": f"batch_req_{digest[:24]}",
        "custom_id": name,
        "response": {"status_code": status, "request_id": f"req_{digest[24:48]}", "body": body},
        "error": {"code": kind, "message": record["error"]} if failed else None,
    }


def unwrap(line: Record) -> Record | None:
    """The fields of dgen's own in a response line; None where there are none."""
    response = line.get("response")
    body = response.get("body") if isinstance(response, Mapping) else None
    inside = body.get("dgen") if isinstance(body, Mapping) else None
    return inside if isinstance(inside, dict) else None


def _choice(record: Record) -> Record:
    message = {"role": "assistant", "content": record["text"], "refusal": None}
    if record["reasoning"]:
        message["reasoning_content"] = record["reasoning"]
    rows = record["logprobs"]
    return {
        "index": 0,
        "message": message,
        "logprobs": None if rows is None else {"content": [_row(row) for row in rows], "refusal": None},
        "finish_reason": "length" if record["finish_reason"] == "length" else "stop",
    }


def _row(row: Record) -> Record:
    top = [*row["top_logprobs"], *row["asked_logprobs"]]
    return {**_token(row), "top_logprobs": [_token(candidate) for candidate in top]}


def _token(entry: Record) -> Record:
    """This format's token is its text, or its name where it has none."""
    data = bytes(entry["bytes"])
    logprob = entry["logprob"]
    return {
        "token": data.decode(errors="replace") if data else entry["token"],
        "bytes": list(data) if data else None,
        "logprob": NO_PROBABILITY if logprob is None else logprob,
    }


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean '{close[0]}'?" if close else ""
