"""Real records validate, records with anything missing, extra or of the wrong kind do not."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dgen.engine.events import Completion
from dgen.output.records import completion_record, dumps, token_record
from dgen.output.schema import schema
from dgen.output.text import TextStream

VALIDATOR = Draft202012Validator(schema())
Line = dict[str, Any]


@pytest.fixture
def token(vocabulary: Any) -> Line:
    emitted, other = vocabulary.emitted(b"a", b"b")
    emitted = replace(emitted, logprob=-0.1, rank=1, top=((other.token_id, -2.0),), asked=((0, -math.inf),))
    record = token_record(
        emitted, vocabulary=vocabulary, channel="answer", request_id="0", index=0, logprobs_of="tempered"
    )
    return json.loads(dumps(record))


@pytest.fixture
def completion(vocabulary: Any) -> Line:
    stream = TextStream(vocabulary)
    tokens = vocabulary.emitted(b"a", "<eos>")
    stream.push(tokens)
    stream.finish()
    done = Completion(0, tuple(tokens), "eos", 3, (2,), ("confidence",), 7)
    record = completion_record(
        done,
        stream=stream,
        request_id="0",
        model="builtin",
        revision=None,
        settings={"steps": 48, "stop": ("x",), "pins": {1: 2}, "bound": math.inf, "logprobs": None},
        timing={"prefill": 0.1, "denoise": None},
        runtime={"device": "cpu", "dtype": "float32", "denoiser": "reference", "kernels": "torch"},
        dgen_version="0",
        vocabulary=vocabulary,
    )
    return json.loads(dumps(record))


def objects(line: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every closed object in a line."""
    if isinstance(line, list):
        return [found for at, item in enumerate(line) for found in objects(item, (*path, at))]
    if not isinstance(line, dict) or (path and path[-1] in ("settings", "timing")):
        return []
    return [path, *(found for name, item in line.items() for found in objects(item, (*path, name)))]


def inside(line: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        line = line[name]
    return line


def test_schema_is_itself_valid_and_fresh() -> None:
    Draft202012Validator.check_schema(schema())
    changed = schema()
    changed["$defs"].clear()
    assert schema()["$defs"]


def test_real_lines_validate(token: Line, completion: Line) -> None:
    VALIDATOR.validate(token)
    VALIDATOR.validate(completion)
    VALIDATOR.validate(
        {**completion, "logprobs": None, "revision": "abc", "finish_reason": "error", "error": "x"}
    )
    assert completion["logprobs"]


@pytest.mark.parametrize("kind", ["token", "completion"])
def test_every_field_is_required_and_no_other_allowed(kind: str, request: pytest.FixtureRequest) -> None:
    line = request.getfixturevalue(kind)
    paths = objects(line)
    assert len(paths) >= 3
    for path in paths:
        for name in inside(line, path):
            broken = copy.deepcopy(line)
            del inside(broken, path)[name]
            assert not VALIDATOR.is_valid(broken), (path, name)
        broken = copy.deepcopy(line)
        inside(broken, path)["extra"] = 1
        assert not VALIDATOR.is_valid(broken), path


@pytest.mark.parametrize("kind", ["token", "completion"])
def test_every_field_has_a_type(kind: str, request: pytest.FixtureRequest) -> None:
    line = request.getfixturevalue(kind)
    for path in objects(line):
        for name, value in inside(line, path).items():
            broken = copy.deepcopy(line)
            inside(broken, path)[name] = (
                1 if isinstance(value, str) or name in ("revision", "error") else "wrong"
            )
            assert not VALIDATOR.is_valid(broken), (path, name)


BREAKS: dict[str, Callable[[Line], object]] = {
    "rank 0": lambda line: line.update(rank=0),
    "byte 256": lambda line: line.update(bytes=[256]),
    "negative position": lambda line: line.update(position=-1),
    "unknown channel": lambda line: line.update(channel="draft"),
    "unknown distribution": lambda line: line.update(logprobs_of="other"),
    "fractional step": lambda line: line.update(step=1.5),
    "other type": lambda line: line.update(type="completion"),
    "infinite candidate": lambda line: line["top_logprobs"][0].update(logprob="-Infinity"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_values_out_of_range_are_refused(name: str, token: Line) -> None:
    BREAKS[name](token)
    assert not VALIDATOR.is_valid(token)


def test_unknown_endings_and_negative_times_are_refused(completion: Line) -> None:
    assert not VALIDATOR.is_valid({**completion, "finish_reason": "done"})
    assert not VALIDATOR.is_valid({**completion, "timing": {"prefill": -1.0}})
    assert not VALIDATOR.is_valid({**completion, "settings_hash": "abc"})


def test_nan_never_becomes_a_line(token: Line) -> None:
    # The schema can't say it: NaN is outside JSON, so it has to fail on the way in.
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({**token, "entropy": math.nan})


def test_every_property_is_described() -> None:
    def undescribed(node: Any, path: str = "") -> list[str]:
        if isinstance(node, list):
            return [found for item in node for found in undescribed(item, path)]
        if not isinstance(node, dict):
            return []
        properties = node.get("properties", {})
        missing = [
            f"{path}.{name}"
            for name, value in properties.items()
            if "description" not in value and "$ref" not in value and name != "type"
        ]
        return missing + [
            found for name, item in node.items() for found in undescribed(item, f"{path}.{name}")
        ]

    assert undescribed(schema()) == []
