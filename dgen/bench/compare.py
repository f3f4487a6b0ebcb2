"""This run against an older one: read its JSON, refuse what can't be compared, and give the ratios.

Standard library alone, so that a wrong file is told before anything is timed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dgen.bench.report import Report
from dgen.errors import UsageError

_OF_MODEL = ("model", "revision", "dtype", "model_canvas")
_WITHOUT_MODEL = ("row_stats.", "stash.", "chain.")  # beginnings of the keys of the sampler's figures
_HINT = "Give a file that `dgen bench --format json` wrote."


@dataclass(frozen=True, slots=True)
class OlderRun:
    """The JSON of an older run, checked, and where it came from."""

    path: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One body's figure, then and now, medians in seconds; `ratio` below 1 means that it has become faster."""

    key: str
    by: str
    old: float
    new: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratios to an older run, its date, and what differs between the two that the ratios can't know."""

    path: str
    date: str | None
    ratios: tuple[Ratio, ...]
    differences: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)

    def of(self, key: str, by: str) -> Ratio | None:
        """The ratio of one body's figure."""
        return next((ratio for ratio in self.ratios if (ratio.key, ratio.by) == (key, by)), None)


def read_report(path: str, *, schema: str, same: Mapping[str, Any]) -> OlderRun:
    """Read an older run of the same bench.

    Args:
        schema: of this run's JSON.
        same: settings, by name, that the older run must share; None of this run's shares any.

    Raises:
        UsageError: no such file, no report of this schema, or of other settings.
    """
    try:
        old = json.loads(Path(os.path.expanduser(path)).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read the older run '{path}': {error.strerror}", hint=_HINT) from None
    except (ValueError, RecursionError):
        raise UsageError(f"'{path}' is no JSON", hint=_HINT) from None
    found = old.get("schema") if isinstance(old, dict) else None
    if found is None:
        raise UsageError(f"'{path}' is no report of a bench", hint=_HINT)
    if found != schema:
        raise UsageError(
            f"'{path}' has the schema {str(found)[:60]!r}, not {schema!r}",
            hint="Give a file of the same bench.",
        )
    try:
        settings = old["settings"]
        for name, now in same.items():
            if now is not None and settings[name] != now:
                shown = name if name == "model" else f"--{name}"
                raise UsageError(
                    f"'{path}' was measured with {shown} {settings[name]}, this run has {now}",
                    hint=f"Run with {shown} {settings[name]}, or compare with another file.",
                )
        _medians(old)
        dict(old["environment"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"'{path}' is a damaged report", hint=_HINT) from None
    return OlderRun(path, old)


def compare(report: Report, older: OlderRun) -> Comparison:
    """Ratios of the medians that both runs have; those of a model's figures only if both ran the same model."""
    old = older.record
    then, now = old["settings"], asdict(report.settings)
    same_model = all(then.get(name) == now.get(name) for name in _OF_MODEL)
    medians = _medians(old)
    ratios = []
    for figure in report.figures:
        if not same_model and not figure.key.startswith(_WITHOUT_MODEL):
            continue
        for measurement in figure.measurements:
            before, after = medians.get((figure.key, measurement.by)), measurement.median
            if before and after:
                ratios.append(Ratio(figure.key, measurement.by, before, after, after / before))
    names = ("device", "kernels", "denoiser", "graphs", "num_slots", "max_context", *_OF_MODEL)
    differences = [
        _difference(name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)
    ]
    was, is_now = old["environment"], report.environment
    differences += [
        _difference(name, was.get(name), is_now.get(name))
        for name in ("gpu", "cpu", "threads", "driver", "torch", "triton", "transformers")
        if was.get(name) != is_now.get(name)
    ]
    return Comparison(older.path, was.get("date"), tuple(ratios), tuple(differences))


def _difference(name: str, then: Any, now: Any) -> str:
    return f"{name} was {then}, is {now}"


def _medians(old: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found = {}
    for figure in old["figures"]:
        for measurement in figure["measurements"]:
            if measurement["median"] is not None:
                found[figure["key"], measurement["by"]] = float(measurement["median"])
    return found
