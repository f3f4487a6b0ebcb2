"""The JSON Schema (draft 2020-12) of every line that `--format json` and `--format jsonl` write.

Knows the fields of records.py and nothing that makes them. Each object is closed, except `settings` and
`timing`, whose names are open and whose values are not.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def schema() -> Schema:
    """A fresh JSON Schema: a line is a token record or a completion record, told apart by `type`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dgen output",
        "description": "A line of JSON output: an emitted token, or the completion that closes a request.",
        "oneOf": [{"$ref": "#/$defs/token"}, {"$ref": "#/$defs/completion"}],
        "$defs": {
            "token": _object(
                "One emitted token, written as it becomes certain (jsonl).",
                {"type": {"const": "token"}, **_owner(), **_entry()},
            ),
            "completion": _object(
                "A finished request.", {"type": {"const": "completion"}, **_owner(), **_completion()}
            ),
            "entry": _object("One emitted token inside a completion (json).", _entry()),
            "candidate": _object(
                "A token and its log-probability.",
                {**_named(), "logprob": _logprob("Log-probability of this token")},
            ),
            "usage": _object("What the request took and gave.", _usage()),
            "runtime": _object(
                "What ran it.",
                {
                    "device": _string("Where the model ran, as torch names it."),
                    "dtype": _string("What it computed in."),
                    "denoiser": _string("What turned canvases into logits."),
                    "kernels": _string("What the sampler ran as: triton or torch."),
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


def _owner() -> Schema:
    return {
        "id": _string("The request's name."),
        "index": _count("Position of the request among those of the run, from 0."),
    }


def _named() -> Schema:
    return {
        "token": _string("The token as the tokenizer writes it."),
        "token_id": _count("Id in the vocabulary."),
        "bytes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "description": "UTF-8 bytes that the token adds to the text; none for special tokens. "
            "A character may be split over several tokens.",
        },
    }


def _entry() -> Schema:
    candidates = {"type": "array", "items": {"$ref": "#/$defs/candidate"}}
    return {
        "position": _count("Position among the request's emitted tokens, from 0."),
        "canvas": _count("Canvas that the token was denoised in, from 0."),
        "step": _count("Denoising step on which its canvas converged, from 0."),
        **_named(),
        "channel": {
            "enum": ["answer", "reasoning"],
            "description": "Where its text goes; markers and labels belong to the channel they delimit.",
        },
        "logprob": _logprob("Log-probability of the emitted token; with a null rank, none was asked for"),
        "rank": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Number of logits at or above the emitted one (1 is the largest, ties count); "
            "null: no log-probabilities were asked for.",
        },
        "entropy": {"type": "number", "description": "Entropy of the position at `temperature`, in nats."},
        "temperature": {
            "type": "number",
            "minimum": 0,
            "description": "The schedule's temperature at that step.",
        },
        "logprobs_of": {
            "enum": ["tempered", "raw", None],
            "description": "Distribution of the log-probabilities: tempered (at `temperature`, filters "
            "included) or raw (T = 1); null: none were asked for.",
        },
        "top_logprobs": {**candidates, "description": "The largest log-probabilities, in descending order."},
        "asked_logprobs": {
            **candidates,
            "description": "Those of the ids that were asked for, in that order.",
        },
    }


def _completion() -> Schema:
    return {
        "text": _string("The answer: no special token, no thought, cut before a stop string."),
        "reasoning": _string("The text of the thoughts, without their label."),
        "finish_reason": {
            "enum": ["eos", "stop", "length", "interrupted", "error"],
            "description": "What ended the request.",
        },
        "error": _nullable_string("What went wrong; null unless finish_reason is error."),
        "usage": {"$ref": "#/$defs/usage"},
        "timing": {
            "type": "object",
            "additionalProperties": {"type": ["number", "null"], "minimum": 0},
            "description": "Durations in seconds, by name; null for what did not happen.",
        },
        "seed": {
            "type": "integer",
            "description": "Repeats this output, with the same prompt, settings, checkpoint and runtime. "
            "Up to 2^63 - 1, which some JSON readers round.",
        },
        "settings": {
            "type": "object",
            "additionalProperties": {"$ref": "#/$defs/setting"},
            "description": "Every setting that shapes the request, by name.",
        },
        "settings_hash": {
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
            "description": "SHA-256 of the settings as canonical JSON, without the seed and the logprob ones.",
        },
        "model": _string("The checkpoint that was asked for."),
        "revision": _nullable_string("Its commit; null for a folder."),
        "runtime": {"$ref": "#/$defs/runtime"},
        "dgen_version": _string("Version of dgen."),
        "logprobs": {
            "type": ["array", "null"],
            "items": {"$ref": "#/$defs/entry"},
            "description": "The emitted tokens; null in jsonl, whose token lines carry them, or unasked.",
        },
    }


def _usage() -> Schema:
    return {
        "prompt_tokens": _count("Tokens of the prompt."),
        "completion_tokens": _count("Emitted tokens, special ones included."),
        "canvases": _count("Canvases begun."),
        "denoising_steps": _count("Decoder passes over all canvases."),
        "steps_per_canvas": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "description": "Denoising steps of each canvas begun.",
        },
        "converged_by": {
            "type": "array",
            "items": {"enum": ["confidence", "steps"]},
            "description": "Why each finished canvas converged.",
        },
        "tokens_per_forward": {
            "type": "number",
            "minimum": 0,
            "description": "Emitted tokens / decoder passes; 0 before the first pass.",
        },
    }


def _object(description: str, properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _string(description: str) -> Schema:
    return {"type": "string", "description": description}


def _nullable_string(description: str) -> Schema:
    return {"type": ["string", "null"], "description": description}


def _count(description: str) -> Schema:
    return {"type": "integer", "minimum": 0, "description": description}


def _logprob(description: str) -> Schema:
    return {"type": ["number", "null"], "description": f"{description}. In nats; null for -infinity."}
