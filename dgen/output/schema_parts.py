"""The fields of a record in JSON Schema, from which `schema.py` puts lines together."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def owner() -> Schema:
    """Whose line it is."""
    return {
        "id": string("The request's name."),
        "index": count("Position of the request among those of the run, from 0."),
    }


def named() -> Schema:
    """A token by its spelling, id and bytes."""
    return {
        "token": string("The token as the tokenizer writes it."),
        "token_id": count("Id in the vocabulary."),
        "bytes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "description": "UTF-8 bytes that the token adds to the text; none for special tokens. "
            "A character may be split over several tokens.",
        },
    }


def entry() -> Schema:
    """What is told of an emitted token."""
    candidates = {"type": "array", "items": {"$ref": "#/$defs/candidate"}}
    return {
        "position": count("Position among the request's emitted tokens, from 0."),
        "canvas": count("Canvas that the token was denoised in, from 0."),
        "step": count("Denoising step on which its canvas converged, from 0."),
        **named(),
        "channel": {
            "enum": ["answer", "reasoning"],
            "description": "Where its text goes; markers and labels belong to the channel they delimit.",
        },
        "logprob": logprob("Log-probability of the emitted token; with a null rank, none was asked for"),
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


def completion() -> Schema:
    """What is told of a finished request."""
    return {
        "text": string("The answer: no special token, no thought, cut before a stop string."),
        "reasoning": string("The text of the thoughts, without their label."),
        "finish_reason": {
            "enum": ["eos", "stop", "length", "interrupted", "error"],
            "description": "What ended the request.",
        },
        "error": nullable_string("What went wrong; null unless finish_reason is error."),
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
        "model": string("The checkpoint that was asked for."),
        "revision": nullable_string("Its commit; null for a folder."),
        "runtime": {"$ref": "#/$defs/runtime"},
        "dgen_version": string("Version of dgen."),
        "logprobs": {
            "type": ["array", "null"],
            "items": {"$ref": "#/$defs/entry"},
            "description": "The emitted tokens; null in jsonl, whose token lines carry them, or unasked.",
        },
    }


def usage() -> Schema:
    """What a request took and gave."""
    return {
        "prompt_tokens": count("Tokens of the prompt."),
        "completion_tokens": count("Emitted tokens, special ones included."),
        "canvases": count("Canvases begun."),
        "denoising_steps": count("Decoder passes over all canvases."),
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


def object_(description: str, properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    """A closed object; its properties are required unless they are `optional`."""
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def string(description: str) -> Schema:
    """A text."""
    return {"type": "string", "description": description}


def nullable_string(description: str) -> Schema:
    """A text or null."""
    return {"type": ["string", "null"], "description": description}


def count(description: str) -> Schema:
    """A whole number from 0 on."""
    return {"type": "integer", "minimum": 0, "description": description}


def logprob(description: str) -> Schema:
    """A log-probability or null."""
    return {"type": ["number", "null"], "description": f"{description}. In nats; null for -infinity."}
