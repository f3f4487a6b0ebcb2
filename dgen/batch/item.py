"""One line of the input as a request: its id, its prompt, its own settings, checked as far as no model is needed.

A line is `{"prompt"}` or `{"messages"}` with settings beside, or an OpenAI batch line (`envelope.py`). A field
that is null counts as not given, as writers of tables leave it; a field that is unknown is refused.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dgen.batch import envelope
from dgen.batch.lines import Line, LineError, parse
from dgen.errors import DgenError
from dgen.output.records import plain
from dgen.prompt import check_prompt
from dgen.settings import SETTINGS, Layer, Resolved, resolve

Id = str | int
SEED_BITS = 53  # what every JSON reader keeps exact
REQUEST_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.scope == "request")
_FIELDS = ("id", "prompt", "messages", "system", "raw")
_MAX_ID = 2**63


@dataclass(frozen=True, slots=True)
class Item:
    """A line that can be run, unless its prompt turns out too long.

    Args:
        number: the line, from 1.
        id: the line's own, else its number as text.
        prompt, messages, system, raw: as in `Generator.job`.
        settings: the line's own settings, by name.
        resolved: those over the run's; the seed is None where the line has none.
        request_hash: SHA-256 (hex) of the prompt and the resolved settings, a drawn seed left out.
        envelope: the answer goes into OpenAI's envelope.
    """

    number: int
    id: Id
    prompt: str | None
    messages: list[dict[str, Any]] | None
    system: str | None
    raw: bool
    settings: Mapping[str, Any]
    resolved: Resolved
    request_hash: str
    envelope: bool = False

    @property
    def key(self) -> str:
        """What makes the line unique: 1 and "1" are the same id."""
        return str(self.id)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads lines under what holds for all of them.

    Args:
        layers: the run's settings, the checkpoint's own beneath; a line's own come on top.
        system: for lines that give none.
        raw: for lines with a prompt that don't say.
        model: the name that an OpenAI body may give as its model.
    """

    layers: Sequence[Layer]
    system: str | None = None
    raw: bool = False
    model: str = ""
    _without_own: list[Resolved] = field(default_factory=list, repr=False)

    def read(self, line: Line) -> Item:
        """Raises LineError: whatever keeps the line from being run, as far as no model is needed."""
        fields = parse(line)
        try:
            if envelope.is_one(fields):
                own = envelope.read(fields, model=self.model)
            else:
                own = _own_fields(fields)
            return self._item(line.number, own, envelope=envelope.is_one(fields))
        except DgenError as error:
            raise LineError(error.message, hint=error.hint) from None
        except RecursionError:
            raise LineError("nested too deeply") from None

    def _item(self, number: int, own: Mapping[str, Any], *, envelope: bool) -> Item:
        settings = {name: own[name] for name in REQUEST_SETTINGS if name in own}
        resolved = self._resolve(settings)
        prompt, messages = own.get("prompt"), own.get("messages")
        raw = _raw(own, self.raw)
        system = own.get("system", None if raw else self.system)
        if system is not None and not isinstance(system, str):
            raise LineError("system must be a text")
        if prompt is not None and messages is not None:
            raise LineError("it has a prompt and messages: leave one out")
        if prompt is None and messages is None:
            raise LineError("it has neither a prompt nor messages")
        if isinstance(prompt, str) and not prompt.strip() and not raw:
            raise LineError("the prompt is empty")  # the advice elsewhere is about the command line
        check_prompt(prompt=prompt, messages=messages, system=system, think=resolved.settings.think, raw=raw)
        return Item(
            number=number,
            id=_id(own.get("id"), number),
            prompt=prompt,
            messages=messages,
            system=system,
            raw=raw,
            settings=settings,
            resolved=resolved,
            request_hash=_hash(prompt, messages, system, raw, resolved, settings),
            envelope=envelope,
        )

    def _resolve(self, settings: Mapping[str, Any]) -> Resolved:
        """The line's settings over the run's, without the run's seed, which is not the line's."""
        if not settings and self._without_own:
            return self._without_own[0]  # most lines, and worth most of the time that a line takes
        # Whoever says what is wrong with a line has named the line: its settings need no source.
        resolved = resolve([*self.layers, Layer("", {"seed": None, **settings})])
        if not settings:
            self._without_own.append(resolved)
        return resolved


def identify(line: Line) -> tuple[Id | None, bool]:
    """What a line that can't be run is called, and whether its answer goes into OpenAI's envelope.

    None where that can't be told: the line is no JSON object, or its id is none.
    """
    try:
        fields = parse(line)
        if envelope.is_one(fields):
            return envelope.id_of(fields), True
        return _id(fields.get("id"), line.number), False
    except (LineError, RecursionError):
        return None, False


def line_seed(run_seed: int, key: str) -> int:
    """The seed of a line that gives none: a function of the run's seed and the line's id, and of nothing else."""
    digest = hashlib.sha256(f"{run_seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


def nearest(name: str, known: Sequence[str]) -> str:
    """The advice for an unknown field."""
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean '{close[0]}'?" if close else ""


def _own_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    known = (*_FIELDS, *REQUEST_SETTINGS)
    for name in fields:
        if name in SETTINGS and name not in known:
            raise LineError(f"{name} can't be set by a line: give it to the command")
        if name not in known:
            raise LineError(f"unknown field '{name}'{nearest(name, known)}")
    return {name: value for name, value in fields.items() if value is not None}


def _raw(own: Mapping[str, Any], default: bool) -> bool:
    raw = own.get("raw", default and "messages" not in own)
    if not isinstance(raw, bool):
        raise LineError("raw must be true or false")
    return raw


def _id(value: Any, number: int) -> Id:
    if value is None:
        return str(number)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise LineError("the id must be a text or a whole number")
    if isinstance(value, int) and not -_MAX_ID <= value < _MAX_ID:
        raise LineError("the id is beyond 64 bits: write it as a text")
    return value


def _hash(
    prompt: str | None,
    messages: Any,
    system: str | None,
    raw: bool,
    resolved: Resolved,
    own: Mapping[str, Any],
) -> str:
    asked = {
        "prompt": prompt,
        "messages": messages,
        "system": system,
        "raw": raw,
        "settings": plain(resolved.request_settings()),
    }
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
