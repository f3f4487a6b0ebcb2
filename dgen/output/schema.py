"""The JSON Schema (draft 2020-12) of every line that dgen writes: single prompts, batches, OpenAI's envelope.

Knows the fields of records.py and nothing that makes them. Each object is closed, except `settings` and
`timing`, whose names are open and whose values are not.
"""

from __future__ import annotations

from dgen.output.schema_parts import (
    Schema,
    completion,
    count,
    entry,
    logprob,
    named,
    object_,
    owner,
    string,
    usage,
)


def schema() -> Schema:
    """A fresh JSON Schema: a line is one of four kinds of record, of which no two fit the same line."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dgen output",
        "description": "A line of JSON: an emitted token, the completion of a request, or a line of a batch.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in ("token", "completion", "line", "response")],
        "$defs": {
            "token": object_(
                "One emitted token, written as it becomes certain (jsonl).",
                {"type": {"const": "token"}, **owner(), **entry()},
            ),
            "completion": object_(
                "A finished request.", {"type": {"const": "completion"}, **owner(), **completion()}
            ),
            "line": object_("A finished line of a batch.", {"type": {"const": "completion"}, **_line()}),
            **_response(),
            "entry": object_("One emitted token inside a completion (json).", entry()),
            "candidate": object_(
                "A token and its log-probability.",
                {**named(), "logprob": logprob("Log-probability of this token")},
            ),
            "usage": object_("What the request took and gave.", usage()),
            "runtime": object_(
                "What ran it.",
                {
                    "device": string("Where the model ran, as torch names it."),
                    "dtype": string("What it computed in."),
                    "denoiser": string("What turned canvases into logits."),
                    "kernels": string("What the sampler ran as: triton or torch."),
                },
            ),
            "setting": {
                "description": "A value as JSON data; a non-finite number is written as its name.",
                "type": ["string", "number", "boolean", "null", "array", "object"],
                "items": {"$ref": "#/$defs/setting"},
                "additionalProperties": {"$ref": "#/$defs/setting"},
            },
        },
    }


def _line() -> Schema:
    """A completion, whose it is in its input file, and what a later run knows it by."""
    return {
        "id": {
            "type": ["string", "integer", "null"],
            "description": "The line's own id, else its number; null where a bad line of a stream has none of its own.",
        },
        "index": count("The line's place in its file, from 0; blank lines count."),
        **completion(),
        "request_hash": {
            "type": ["string", "null"],
            "pattern": "^[0-9a-f]{64}$",
            "description": "SHA-256 of prompt and settings as canonical JSON, without a seed that was not given.",
        },
        "run_seed": {
            "type": "integer",
            "description": "The run's seed: with the id it makes the seed of a line that gives none.",
        },
    }


def _response() -> Schema:
    """OpenAI's batch output; `dgen` in a body holds the fields of a line that are not elsewhere in it."""
    inside = {name: field for name, field in _line().items() if name not in ("text", "logprobs")}
    whole = {
        "id": string("Name of the completion."),
        "object": {"const": "chat.completion", "description": "What it is."},
        "created": count("Seconds since 1970."),
        "model": string("The checkpoint that was asked for."),
        "system_fingerprint": string("Start of the settings' hash."),
        "choices": {
            "type": "array",
            "items": {"$ref": "#/$defs/choice"},
            "minItems": 1,
            "maxItems": 1,
            "description": "The one answer.",
        },
        "usage": object_(
            "Tokens.",
            {
                "prompt_tokens": count("Of the prompt."),
                "completion_tokens": count("Emitted ones."),
                "total_tokens": count("Of both."),
            },
        ),
        "dgen": {"$ref": "#/$defs/inside"},
    }
    broken = {
        "error": object_("Why it failed.", {"message": string("In words."), **_error_kind()}),
        "dgen": {"$ref": "#/$defs/inside"},
    }
    return {
        "response": object_(
            "A finished OpenAI batch line.",
            {
                "id": string("Name of the answered request."),
                "custom_id": string("The line's own."),
                "response": object_(
                    "The answer.",
                    {
                        "status_code": {
                            "enum": [200, 400, 500],
                            "description": "200, or why it failed: 400 the request, 500 the run.",
                        },
                        "request_id": string("Name of the request."),
                        "body": {
                            "oneOf": [object_("The completion.", whole), object_("A failure.", broken)],
                            "description": "The completion, or a failure.",
                        },
                    },
                ),
                "error": {
                    "oneOf": [
                        {"type": "null"},
                        object_("A failure.", {"code": string("Its kind."), "message": string("In words.")}),
                    ],
                    "description": "Null unless it failed.",
                },
            },
        ),
        "inside": object_("What OpenAI's format has no place for.", inside),
        "choice": object_("The answer.", _choice()),
        "chat_token": object_(
            "An emitted token; -9999 stands for a probability of 0.",
            {
                **_chat_token(),
                "top_logprobs": _list("chat_candidate", "The largest, and those asked for by id."),
            },
        ),
        "chat_candidate": object_("A token that could have been.", _chat_token()),
    }


def _choice() -> Schema:
    return {
        "index": {"const": 0, "description": "The only one."},
        "message": object_(
            "The answer as a message.",
            {
                "role": {"const": "assistant", "description": "Whose it is."},
                "content": string("The text."),
                "refusal": {"type": "null", "description": "Never set."},
                "reasoning_content": string("The text of the thoughts, where there are any."),
            },
            optional=("reasoning_content",),
        ),
        "logprobs": {
            "oneOf": [
                {"type": "null"},
                object_(
                    "Log-probabilities.",
                    {
                        "content": _list("chat_token", "The emitted tokens, special ones included."),
                        "refusal": {"type": "null", "description": "Never set."},
                    },
                ),
            ],
            "description": "Null unless asked for.",
        },
        "finish_reason": {"enum": ["stop", "length"], "description": "What ended it."},
    }


def _chat_token() -> Schema:
    return {
        "token": string("The token's text, or its name where it adds none."),
        "bytes": {
            "type": ["array", "null"],
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "description": "Its UTF-8 bytes; null for none.",
        },
        "logprob": {"type": "number", "description": "Natural logarithm of its probability."},
    }


def _error_kind() -> Schema:
    return {
        "type": {"enum": ["invalid_request_error", "server_error"], "description": "Whose fault it is."},
        "param": {"type": "null", "description": "Never set."},
        "code": {"type": "null", "description": "Never set."},
    }


def _list(kind: str, description: str) -> Schema:
    return {"type": "array", "items": {"$ref": f"#/$defs/{kind}"}, "description": description}
