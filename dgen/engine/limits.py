"""What the engine refuses to run, with the numbers, before any work. Plain data in, an error out."""

from __future__ import annotations

from collections.abc import Iterable

from dgen.engine.request import Request
from dgen.errors import ContextError, SettingsError

MAX_TOP_LOGPROBS = 1024
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_FLOAT32 = 3.4e38


def check_request(request: Request, *, canvas_len: int, vocab_size: int, max_context: int) -> None:
    """Raise unless an engine of these sizes can run the request.

    Raises:
        ContextError: prompt and canvases exceed the model's positions.
        SettingsError: a number out of range, an id outside the vocabulary, a pin or seed canvas that lies beyond the
            answer, or an empty prompt.
    """
    _check_numbers(request)
    canvases = -(-request.max_tokens // canvas_len)
    prompt = len(request.prompt_ids)
    need = prompt + canvases * canvas_len
    if need > max_context:
        room = (max_context - prompt) // canvas_len * canvas_len
        raise ContextError(
            f"{prompt} prompt tokens and {canvases} {'canvas' if canvases == 1 else 'canvases'} of {canvas_len} make "
            f"{need} positions; the context has {max_context}",
            hint=f"Set --max-tokens to at most {room}."
            if room > 0
            else "Shorten the prompt, or raise --max-context where it was given.",
        )
    if not prompt:
        raise SettingsError("the prompt has no tokens", hint="Give at least one token.")
    if not 0 <= request.hold <= prompt:
        raise SettingsError(
            f"hold must lie in [0, {prompt}], not {request.hold}", hint="It counts ids of the prompt."
        )
    for name in ("prompt_ids", "logprob_ids", "seed_canvas"):
        _check_ids(name, getattr(request, name), vocab_size)
    _check_ids("pins", request.pins.values(), vocab_size)
    for position in request.pins:
        if not 0 <= position < request.max_tokens:
            raise SettingsError(
                f"pins: position {position} lies outside the answer",
                hint=f"Positions run from 0 to {request.max_tokens - 1}.",
            )
    if len(request.seed_canvas) > canvases * canvas_len:
        raise SettingsError(
            f"the seed canvas has {len(request.seed_canvas)} ids; the answer has {canvases * canvas_len} positions",
            hint="Shorten it, or raise --max-tokens.",
        )


def _check_numbers(request: Request) -> None:
    ranges: list[tuple[str, float, float]] = [
        ("max_tokens", 1, _INT32),
        ("steps", 1, _INT32),
        ("stability", 0, 64),
        ("top_k", 0, _INT32),
        ("seed", -_INT64 - 1, _INT64),
        ("entropy_bound", 0, _FLOAT32),
        ("t_min", 0, request.t_max),
        ("t_max", 0, _FLOAT32),
        ("confidence", 0, _FLOAT32),
        ("top_p", 0, 1),
    ]
    if request.logprobs is not None:
        ranges.append(("logprobs", 0, MAX_TOP_LOGPROBS))
    for name, low, high in ranges:
        value = getattr(request, name)
        if not low <= value <= high:  # a NaN fails too
            raise SettingsError(
                f"{name} must lie in [{low:g}, {high:g}], not {value}", hint="Correct the request."
            )


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise SettingsError(
                f"{name}: {token_id} is no token id", hint=f"Ids run from 0 to {vocab_size - 1}."
            )
