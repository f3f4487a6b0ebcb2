"""Fields of a JSON object, taken in the form that they must have, or refused in words for whoever wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_MISFITS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
"""What Python raises over data of another form; its words are no help to a reader of traces."""


class Refused(Exception):
    """Why a line is none, in words for whoever has the file."""


def field(record: Mapping[str, Any], key: str, form: Callable[[Any], T], what: str = "") -> T:
    """A field's value, as `form` makes it; refused where it is missing, or has another form than `what` says."""
    if key not in record:
        raise Refused(f"'{key}' is missing")
    try:
        return form(record[key])
    except _MISFITS:
        raise Refused(f"'{key}' must be {what or _WHAT[form]}, not {shown(record[key])}") from None


def shown(value: Any) -> str:
    """A value's JSON, or its beginning."""
    try:
        text = json.dumps(value)
    except RecursionError:
        text = "something nested deeply"
    return text if len(text) <= 40 else text[:37] + "..."


def a_number(value: Any) -> float:
    """A finite number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError
    return value


def numbers(values: Any) -> tuple[float, ...]:
    """A list of such numbers."""
    return tuple(a_number(value) for value in _list(values))


def a_count(value: Any) -> int:
    """A whole number from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def counts(values: Any) -> list[int]:
    """A list of such counts."""
    return [a_count(value) for value in _list(values)]


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError
    return values


def a_text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError
    return value


def text_or_null(value: Any) -> str | None:
    """A text or null."""
    return None if value is None else a_text(value)


def an_object(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError
    return value


_WHAT: Mapping[Callable[[Any], Any], str] = {
    a_number: "a number",
    numbers: "a list of numbers",
    a_count: "a whole number from 0 on",
    counts: "a list of whole numbers from 0 on",
    a_text: "a text",
    text_or_null: "a text or null",
    an_object: "an object",
}
"""What a field of a form must be, in words."""
