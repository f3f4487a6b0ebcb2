"""What `dgen infill` and `dgen choose` write as JSON, and the JSON Schema of it.

Plain data in, plain dicts out; knows neither the search nor the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dgen.output.records import Record, plain, settings_hash

Schema = dict[str, Any]


def filling_record(
    *,
    rank: int,
    text: str,
    pieces: Sequence[str],
    fills: Sequence[str],
    ids: Sequence[Sequence[int]],
    score: float,
    gap_logprob: float,
    seed: int,
) -> Record:
    """One filling: the whole text, where each gap's text lies in it (in characters), its ids and the scores."""
    gaps, at = [], 0
    for piece, fill, fill_ids in zip(pieces, fills, ids, strict=False):
        at += len(piece)
        gaps.append({"text": fill, "start": at, "end": at + len(fill), "token_ids": list(fill_ids)})
        at += len(fill)
    return {
        "type": "filling",
        "rank": rank,
        "text": text,
        "gaps": gaps,
        "score": finite(score),
        "gap_logprob": finite(gap_logprob),
        "seed": seed,
    }


def choice_record(*, text: str, probability: float, logprob: float, tokens: int) -> Record:
    """One choice with its share, its log-probability in nats and the tokens behind that."""
    return {"text": text, "probability": probability, "logprob": finite(logprob), "tokens": tokens}


def run_record(
    kind: str,
    *,
    seed: int,
    settings: Mapping[str, object],
    passes: int,
    seconds: Mapping[str, float],
    model: str,
    revision: str | None,
    runtime: Mapping[str, str],
    dgen_version: str,
    **own: Any,
) -> Record:
    """The record of a whole run: what is its `own`, and how to repeat it."""
    return {
        "type": kind,
        **own,
        "decoder_passes": passes,
        "timing": dict(seconds),
        "seed": seed,
        "settings": plain(settings),
        "settings_hash": settings_hash(settings),
        "model": model,
        "revision": revision,
        "runtime": dict(runtime),
        "dgen_version": dgen_version,
    }


def finite(value: float) -> float | None:
    """The number, or None for -inf."""
    return value if math.isfinite(value) else None


def infill_schema() -> Schema:
    """A fresh JSON Schema of a line of `dgen infill`: a filling, or the infill that closes the run."""
    fillings = {"type": ["array", "null"], "items": {"$ref": "#/$defs/filling"}}
    fillings["description"] = "The fillings, the best first; null in jsonl, whose lines carry them."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dgen infill",
        "oneOf": [{"$ref": "#/$defs/filling"}, {"$ref": "#/$defs/infill"}],
        "$defs": {
            "filling": _object("One way to fill the gaps.", _filling()),
            "infill": _object(
                "A finished run.", {"type": {"const": "infill"}, "fillings": fillings, **_run()}
            ),
        },
    }


def choose_schema() -> Schema:
    """A fresh JSON Schema of the line that `dgen choose` writes."""
    choice = _object(
        "One choice.",
        {
            "text": _typed("string", "The choice as given."),
            "probability": {
                **_typed("number", "Its share; all of them sum to 1."),
                "minimum": 0,
                "maximum": 1,
            },
            "logprob": _logprob(
                "Log-probability of its tokens that not every choice shares, the end included"
            ),
            "tokens": _count("How many tokens those are."),
        },
    )
    own = {
        "type": {"const": "choose"},
        "best": _typed("string", "The likeliest choice."),
        "choices": {"type": "array", "items": choice, "description": "The likeliest first."},
        "mass": _typed("number", "Probability that the model gives to all choices together."),
        "exact": _typed("boolean", "Whether each token was read with those before it pinned."),
    }
    line = _object("The choices and how to repeat the run.", {**own, **_run()})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dgen choose", **line}


def _filling() -> Schema:
    gap = _object(
        "What stands in a gap.",
        {
            "text": _typed("string", "Its text."),
            "start": _count("Its first character in the whole text, from 0."),
            "end": _count("The character behind its last."),
            "token_ids": {"type": "array", "items": _count("A token id."), "description": "Its tokens."},
        },
    )
    return {
        "type": {"const": "filling"},
        "rank": _count("Place among the fillings, 1 for the best."),
        "text": _typed("string", "The whole text."),
        "gaps": {"type": "array", "items": gap, "description": "The gaps, in the order of the text."},
        "score": _logprob(
            "Sum over the whole text, what is given included, on the converging steps at T = 1"
        ),
        "gap_logprob": _logprob("The gaps' own part of the score"),
        "seed": _count("Seed of the request that wrote it."),
    }


def _run() -> Schema:
    return {
        "decoder_passes": _count("Decoder passes of all requests."),
        "timing": _open("number", "Durations in seconds, by name."),
        "seed": _count("Repeats the run, with the same settings, checkpoint and runtime."),
        "settings": _open(None, "Every setting that shapes the requests, by name."),
        "settings_hash": _typed("string", "SHA-256 of the settings as canonical JSON, without the seed."),
        "model": _typed("string", "The checkpoint that was asked for."),
        "revision": {"type": ["string", "null"], "description": "Its commit; null for a folder."},
        "runtime": _open("string", "What ran it: device, dtype, denoiser, sampler kernels."),
        "dgen_version": _typed("string", "Version of dgen."),
    }


def _object(description: str, properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _open(kind: str | None, description: str) -> Schema:
    values: Schema | bool = {"type": kind} if kind else True
    return {"type": "object", "additionalProperties": values, "description": description}


def _typed(kind: str, description: str) -> Schema:
    return {"type": kind, "description": description}


def _count(description: str) -> Schema:
    return {"type": "integer", "minimum": 0, "description": description}


def _logprob(description: str) -> Schema:
    return {"type": ["number", "null"], "description": f"{description}. In nats; null for -infinity."}
