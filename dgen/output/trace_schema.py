"""The JSON Schema (draft 2020-12) of each line of a trace. Knows the fields of trace.py and nothing that makes them."""

from __future__ import annotations

from typing import Any

from dgen.output.schema import schema as output_schema
from dgen.output.trace import TRACE_VERSION

Schema = dict[str, Any]


def trace_schema() -> Schema:
    """A fresh JSON Schema: a line is a header, a step, a canvas or an end, told apart by `type`."""
    output = output_schema()
    completion = output["$defs"]["completion"]["properties"]
    kinds = {
        "header": _object("The first line: what was run.", _header(completion)),
        "step": _object("One denoising step.", _step()),
        "canvas": _object("A converged canvas.", _canvas()),
        "end": _object("The last line of a run that was not killed.", _end(completion)),
    }
    for kind, definition in kinds.items():
        definition["properties"] = {"type": {"const": kind}, **definition["properties"]}
        definition["required"] = list(definition["properties"])
    shared = {name: output["$defs"][name] for name in ("runtime", "setting")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dgen trace",
        "description": "A line of a trace: one header, then steps and canvases as they happen, then an end.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": {**kinds, **shared, "name": _name()},
    }


def _header(completion: Schema) -> Schema:
    return {
        "trace": {"const": TRACE_VERSION, "description": "Version of this format."},
        **{
            name: completion[name]
            for name in ("dgen_version", "model", "revision", "runtime", "seed", "settings")
        },
        "id": {"type": "string", "description": "The request's name, as in its completion record."},
        "versions": {
            "type": "object",
            "additionalProperties": {"type": ["string", "null"]},
            "description": "Versions of Python and of the packages that computed; null for an absent one.",
        },
        "canvas_len": _count("Positions of a canvas."),
        "prompt_ids": _ids("Token ids of the prompt, the chat template's included."),
        "names": _names(),
    }


def _step() -> Schema:
    return {
        "canvas": _count("Canvas, from 0."),
        "step": _count("Denoising step of this canvas, from 0."),
        "time": _time(),
        "temperature": _number("The schedule's temperature.", minimum=0),
        "mean_entropy": _number("Mean entropy over unpinned positions, in nats."),
        "accepted": {
            "type": "array",
            "items": {"type": "array", "items": _count(""), "minItems": 2, "maxItems": 2},
            "description": "Accepted positions of this step as [first, behind the last].",
        },
        "entropy": {
            "type": "array",
            "items": {"type": "number"},
            "description": "Entropy of each position at `temperature`, in nats, to 4 decimals.",
        },
        "changes": {
            "type": "array",
            "items": {"type": "array", "prefixItems": [_count(""), _ids("")], "minItems": 2, "maxItems": 2},
            "description": "Where the argmax canvas differs from that of the step before: "
            "[first position, ids from there on]; all of it on a canvas's first step.",
        },
        "names": _names(),
    }


def _canvas() -> Schema:
    pairs = {
        "type": "array",
        "items": {
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [_count(""), {"type": ["number", "null"]}],
                "minItems": 2,
                "maxItems": 2,
            },
        },
    }
    logprobs = _object(
        "Of each emitted token.",
        {
            "logprob": {"type": "array", "items": {"type": ["number", "null"]}},
            "rank": {"type": "array", "items": {"type": "integer", "minimum": 1}},
            "top": {**pairs, "description": "The likeliest ids as [id, log-probability]."},
            "asked": {**pairs, "description": "The ids asked for as [id, log-probability]."},
        },
    )
    return {
        "canvas": _count("Canvas, from 0."),
        "time": _time(),
        "steps": _count("Its denoising steps."),
        "converged_by": {"enum": ["confidence", "steps"], "description": "Why it converged."},
        "tokens": _ids("What it emits, up to the end of the text or of the budget."),
        "logprobs": {
            "oneOf": [logprobs, {"type": "null"}],
            "description": "Log-probabilities at the converging step, in nats, null for -infinity; "
            "null where none were asked for.",
        },
        "names": _names(),
    }


def _end(completion: Schema) -> Schema:
    return {
        "time": _time(),
        "finish_reason": completion["finish_reason"],
        "error": completion["error"],
        "tokens": _count("Emitted tokens that count."),
        "steps": {
            "type": "array",
            "items": _count(""),
            "description": "Denoising steps of each canvas begun.",
        },
    }


def _names() -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"$ref": "#/$defs/name"},
        "description": "Tokens that occur here and in no earlier line, by id.",
    }


def _name() -> Schema:
    return {
        "description": "A token's text; its bytes, where they are no text by themselves; or its name, "
        "where it adds nothing to the text.",
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}, "minItems": 1},
            {
                "type": "object",
                "properties": {"special": {"type": "string"}},
                "required": ["special"],
                "additionalProperties": False,
            },
        ],
    }


def _object(description: str, properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _time() -> Schema:
    return _number("Seconds since the header was written.", minimum=0)


def _number(description: str, **limits: float) -> Schema:
    return {"type": "number", "description": description, **limits}


def _count(description: str) -> Schema:
    found: Schema = {"type": "integer", "minimum": 0}
    return {**found, "description": description} if description else found


def _ids(description: str) -> Schema:
    found: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    return {**found, "description": description} if description else found
