"""Values as people read them: a word for what is unset, how what is automatic will be chosen, counts in the plural."""

from __future__ import annotations

import json
from typing import Any

from dgen.settings import Resolved

AUTO = {
    "seed": "drawn for each run",
    "revision": "a hub model's main branch",
    "device": "CUDA where there is a card",
    "dtype": "that of the files on CUDA, float32 on a CPU",
    "kernel": "triton on CUDA, else torch",
    "denoiser": "fused where it can run, else reference",
    "slots": "as many as the command has use for and memory holds",
    "max_context": "what the model has and memory holds",
}
"""How a setting is chosen that is unset, or `auto`."""


def written(name: str, value: Any) -> str:
    """A setting's value on one line."""
    if value is None:
        return "auto" if name in AUTO else "off"
    if value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        items = (item if isinstance(item, int) else json.dumps(item, ensure_ascii=False) for item in value)
        return ",".join(map(str, items))
    text = str(value)
    return text if text.isprintable() else json.dumps(text)


def source_of(name: str, resolved: Resolved) -> str:
    """Where a setting's value comes from and, where it is automatic, how it is chosen."""
    value, source = getattr(resolved.settings, name), resolved.sources[name]
    return f"{source}: {AUTO[name]}" if name in AUTO and value in (None, "auto") else source


def line(name: str, resolved: Resolved) -> str:
    """Name, value and source."""
    return f"{name} = {written(name, getattr(resolved.settings, name))} ({source_of(name, resolved)})"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """A number of things: 1 canvas, 2 canvases."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
