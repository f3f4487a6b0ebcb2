"""A line as a request: ids, settings, seeds, hashes, and what is refused before a model is there."""

from __future__ import annotations

import json

import pytest
from batching import LAYERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgen.batch.item import REQUEST_SETTINGS, Reader, line_seed
from dgen.batch.lines import Line, LineError

READER = Reader(LAYERS, model="scripted")


def read(fields, reader=READER, number=7):
    return reader.read(Line(number, json.dumps(fields).encode()))


def test_an_id_comes_back_as_it_was_given_and_else_is_the_line_number():
    assert read({"prompt": "a"}).id == "7"
    assert read({"prompt": "a", "id": "x"}).id == "x"
    assert read({"prompt": "a", "id": 12}).id == 12
    assert read({"prompt": "a", "id": 12}).key == read({"prompt": "a", "id": "12"}).key


def test_null_counts_as_not_given():
    columns = dict.fromkeys(("id", "messages", "system", "raw", *REQUEST_SETTINGS))
    assert read({"prompt": "a", **columns}) == read({"prompt": "a"})


def test_a_lines_settings_come_over_the_runs():
    own = {"steps": 9, "t_max": 1.5, "stop": "x", "logprob_ids": [4]}
    found = read({"prompt": "a", **own}).resolved.settings
    assert (found.steps, found.t_max, found.stop, found.logprob_ids) == (9, 1.5, ("x",), (4,))
    assert (found.logprobs, found.max_tokens) == (0, 20)


def test_the_runs_seed_is_not_the_lines():
    assert read({"prompt": "a"}).resolved.settings.seed is None
    assert read({"prompt": "a", "seed": 3}).resolved.settings.seed == 3


def test_system_and_raw_of_the_command_hold_where_a_line_is_silent():
    reader = Reader(LAYERS, system="be brief")
    assert read({"prompt": "a"}, reader).system == "be brief"
    assert read({"prompt": "a", "system": "shout"}, reader).system == "shout"
    assert read({"prompt": "a", "raw": True}, reader).system is None
    raw = Reader(LAYERS, raw=True)
    assert read({"prompt": "a"}, raw).raw
    assert not read({"prompt": "a", "raw": False}, raw).raw
    assert not read({"messages": [{"role": "user", "content": "a"}]}, raw).raw


@pytest.mark.parametrize(
    ("fields", "reason", "hint"),
    [
        (
            {"t_max": -1},
            "t_max must be a number >= 0, not -1",
            "Temperature of the first step.",
        ),
        ({"stop": 5}, "stop must be one or more non-empty texts, not 5", "End the answer before this text"),
        (
            {"t_max": 0.1},
            "t_min 0.4 (default) is above t_max 0.1",
            "The temperature falls from t_max to t_min",
        ),
        ({"prompt": " "}, "the prompt is empty", ""),
    ],
)
def test_a_reason_names_no_source_but_others_and_keeps_its_hint(fields, reason, hint):
    with pytest.raises(LineError) as caught:
        read({"prompt": "a", **fields})
    assert str(caught.value) == reason
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) == bool(hint)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "neither a prompt nor messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "a prompt and messages"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": 5}, "must be a text, not a number"),
        ({"prompt": 0.5}, "must be a text, not a number"),
        ({"prompt": True}, "must be a text, not a truth value"),
        ({"prompt": ["a"]}, "must be a text, not a list"),
        ({"prompt": {"a": 1}}, "must be a text, not an object"),
        ({"messages": []}, "non-empty list"),
        ({"messages": "hi"}, "non-empty list"),
        ({"messages": [{"role": "user"}]}, "message 1 has no role and content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "the role tool"),
        ({"messages": [{"role": ["x"], "content": "x"}]}, "the role"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "has an object as content"),
        ({"messages": [{"role": "user", "content": 5}]}, "has a number as content"),
        ({"messages": [{"role": "user", "content": None}]}, "has null as content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message is from assistant"),
        ({"promt": "a"}, "unknown field 'promt': did you mean 'prompt'?"),
        ({"prompt": "a", "temperature": 1}, "unknown field 'temperature'"),
        ({"prompt": "a", "model": "x"}, "model can't be set by a line"),
        ({"prompt": "a", "id": ""}, "the id must be"),
        ({"prompt": "a", "id": True}, "the id must be"),
        ({"prompt": "a", "id": 1.5}, "the id must be"),
        ({"prompt": "a", "id": [1]}, "the id must be"),
        ({"prompt": "a", "id": 2**63}, "64 bits"),
        ({"prompt": "a", "system": 5}, "system must be a text"),
        ({"prompt": "a", "raw": "yes"}, "raw must be true or false"),
        ({"prompt": "a", "raw": True, "think": True}, "thinking needs the chat template"),
        ({"messages": [{"role": "user", "content": "a"}], "raw": True}, "messages need the chat template"),
        ({"prompt": "a", "steps": 0}, "steps must be a whole number >= 1, not 0"),
        ({"prompt": "a", "steps": True}, "steps must be a whole number"),
        ({"prompt": "a", "steps": {"x": 1}}, "steps must be a whole number"),
        ({"prompt": "a", "stop": [1]}, "stop must be"),
        ({"prompt": "a", "stop": ""}, "stop must be"),
        ({"prompt": "a", "logprob_ids": [[1]]}, "logprob_ids must be"),
        ({"prompt": "a", "t_min": 2, "t_max": 1}, "t_min 2 is above t_max 1"),
        ({"prompt": "a", "greedy": True, "t_max": 1}, "greedy is temperature 0, but t_max is 1"),
        ({"prompt": "a", "seed": -1}, "seed must be"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_with_a_reason(fields, reason):
    with pytest.raises(LineError) as caught:
        read(fields)
    assert reason in str(caught.value)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "id",
        "prompt",
        "messages",
        "system",
        "raw",
        *REQUEST_SETTINGS,
        "custom_id",
        "method",
        "url",
        "body",
        "else",
    ]
)
INNER = st.sampled_from(
    ["role", "content", "messages", "temperature", "top_logprobs", "n", "logprobs", "tools", "seed"]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, ANY | st.dictionaries(INNER, ANY, max_size=4), max_size=6))
def test_fields_of_any_kind_are_a_request_or_a_reason(fields):
    try:
        item = read(fields)
    except LineError:
        return
    assert item.prompt is not None or item.messages is not None
    assert item.key


def test_deep_nesting_inside_a_field_is_a_reason_too():
    for depth in (200, 500, 900, 5000, 50_000):
        data = b'{"prompt": "a", "stop": ' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(LineError):
            READER.read(Line(1, data))


def test_hashes_tell_requests_apart_and_nothing_else():
    base = read({"prompt": "a"}).request_hash
    assert base == read({"prompt": "a", "id": "other"}, number=9).request_hash
    assert base == read({"prompt": "a", "steps": 5}).request_hash  # what the run says anyway
    others = [
        {"prompt": "b"},
        {"prompt": "a", "steps": 6},
        {"prompt": "a", "seed": 1},
        {"prompt": "a", "logprobs": 1},
    ]
    others += [
        {"prompt": "a", "raw": True},
        {"prompt": "a", "system": "s"},
        {"messages": [{"role": "user", "content": "a"}]},
    ]
    hashes = [read(other).request_hash for other in others]
    assert len({base, *hashes}) == len(others) + 1


@given(st.integers(0, 2**63 - 1), st.text(min_size=1, max_size=10))
def test_drawn_seeds_are_a_function_of_run_and_id(seed, key):
    drawn = line_seed(seed, key)
    assert drawn == line_seed(seed, key)
    assert 0 <= drawn < 2**53
    assert drawn != line_seed(seed, key + "x")
    assert drawn != line_seed(seed + 1, key)


def test_seeds_are_the_same_for_ever():
    assert line_seed(1, "1") == 7554410117382319  # published records must be repeatable
