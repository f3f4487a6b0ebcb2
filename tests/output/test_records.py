"""Records carry what was emitted, as strict JSON on one line, whatever bytes the model wrote."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgen.engine.events import Completion
from dgen.errors import NumericalError
from dgen.output.records import completion_record, dumps, plain, settings_hash, token_entries, token_record
from dgen.output.text import TextStream

SETTINGS = {"steps": 48, "t_max": 0.8, "seed": 5, "stop": ("END",)}


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def parsed(line: str) -> Any:
    """One line, through UTF-8 and a strict parser."""
    assert len(line.splitlines()) == 1
    return json.loads(line.encode("utf-8").decode("utf-8"), parse_constant=no_constant)


def completed(
    vocabulary: Any,
    *symbols: bytes | str,
    stops: tuple[str, ...] = (),
    logprobs: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    stream = TextStream(vocabulary, stops)
    tokens = vocabulary.emitted(*symbols)
    stream.push(tokens)
    stream.finish()
    completion = Completion(
        index=2,
        tokens=tuple(tokens),
        finish_reason="eos",
        prompt_tokens=7,
        steps=(3, 5),
        converged_by=("confidence", "steps"),
        seed=5,
    )
    return completion_record(
        replace(completion, **changes),
        stream=stream,
        request_id="q1",
        model="builtin",
        revision=None,
        settings=SETTINGS,
        timing={"prefill": 0.5, "denoise": None},
        runtime={"device": "cpu", "dtype": "float32", "denoiser": "reference", "kernels": "torch"},
        dgen_version="1.2.3",
        vocabulary=vocabulary if logprobs else None,
    )


def test_token_line_holds_the_token_and_its_log_probabilities(vocabulary: Any) -> None:
    first, other = vocabulary.emitted(b"\xe2\x82", b"b")
    emitted = replace(
        first,
        logprob=-0.1,
        rank=1,
        top=((first.token_id, -0.1), (other.token_id, -3.0)),
        asked=((0, -math.inf),),
    )
    record = token_record(
        emitted, vocabulary=vocabulary, channel="answer", request_id="q1", index=2, logprobs_of="raw"
    )
    assert parsed(dumps(record)) == {
        "type": "token",
        "id": "q1",
        "index": 2,
        "position": 0,
        "canvas": 0,
        "step": 3,
        "token": "\ufffd",
        "token_id": first.token_id,
        "bytes": [0xE2, 0x82],
        "channel": "answer",
        "logprob": -0.1,
        "rank": 1,
        "entropy": 0.25,
        "temperature": 0.5,
        "logprobs_of": "raw",
        "top_logprobs": [
            {"token": "\ufffd", "token_id": first.token_id, "bytes": [0xE2, 0x82], "logprob": -0.1},
            {"token": "b", "token_id": other.token_id, "bytes": [98], "logprob": -3.0},
        ],
        "asked_logprobs": [{"token": "<|channel>", "token_id": 0, "bytes": [], "logprob": None}],
    }


def entry(vocabulary: Any, **changes: Any) -> dict[str, Any]:
    (emitted,) = vocabulary.emitted(b"a")
    return token_record(
        replace(emitted, **changes),
        vocabulary=vocabulary,
        channel="answer",
        request_id="0",
        index=0,
        logprobs_of="tempered",
    )


def test_unasked_log_probabilities_differ_from_those_of_minus_infinity(vocabulary: Any) -> None:
    unasked, impossible = entry(vocabulary), entry(vocabulary, logprob=-math.inf, rank=9)
    assert (unasked["logprob"], unasked["rank"], unasked["logprobs_of"]) == (None, None, None)
    assert (impossible["logprob"], impossible["rank"], impossible["logprobs_of"]) == (None, 9, "tempered")


def test_numbers_keep_every_bit(vocabulary: Any) -> None:
    value = math.log(0.1) / 3
    assert parsed(dumps(entry(vocabulary, logprob=value, rank=1)))["logprob"] == value


@pytest.mark.parametrize("changes", [{"logprob": math.nan}, {"logprob": math.inf}, {"entropy": math.nan}])
@pytest.mark.parametrize("where", ["itself", "top", "asked"])
def test_a_number_that_is_none_raises(vocabulary: Any, changes: dict[str, float], where: str) -> None:
    if where != "itself":
        changes = {where: ((0, next(iter(changes.values()))),)}
    with pytest.raises(NumericalError, match="at position 0 is"):
        entry(vocabulary, **changes)


def test_completion_counts_what_was_kept(vocabulary: Any) -> None:
    record = completed(vocabulary, b"a", b"b", "<eos>")
    assert record["text"] == "ab"
    assert record["finish_reason"] == "eos"
    assert record["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "canvases": 2,
        "denoising_steps": 8,
        "steps_per_canvas": [3, 5],
        "converged_by": ["confidence", "steps"],
        "tokens_per_forward": 3 / 8,
    }
    assert record["timing"] == {"prefill": 0.5, "denoise": None}
    assert (record["id"], record["index"], record["seed"], record["logprobs"]) == ("q1", 2, 5, None)


def test_stop_found_at_the_very_end_is_the_finish_reason(vocabulary: Any) -> None:
    record = completed(vocabulary, b"xab", b"c", stops=("bc", "abcd"), finish_reason="length")
    assert (record["text"], record["finish_reason"]) == ("xa", "stop")
    assert record["usage"]["completion_tokens"] == 1


def test_log_probabilities_match_the_kept_tokens_one_to_one(vocabulary: Any) -> None:
    record = completed(
        vocabulary,
        "<|channel>",
        b"thought\n",
        b"hm",
        "<channel|>",
        b"a",
        b"END",
        stops=("END",),
        logprobs=True,
    )
    assert [token["position"] for token in record["logprobs"]] == [0, 1, 2, 3, 4]
    assert [token["channel"] for token in record["logprobs"]] == ["reasoning"] * 4 + ["answer"]
    assert not {"type", "id", "index"} & set(record["logprobs"][0])
    assert len(record["logprobs"]) == record["usage"]["completion_tokens"]


def test_failure_carries_its_message_and_keeps_its_text(vocabulary: Any) -> None:
    record = completed(vocabulary, b"part", finish_reason="error", error="NaN at step 3", steps=())
    assert (record["text"], record["finish_reason"], record["error"]) == ("part", "error", "NaN at step 3")
    assert record["usage"]["tokens_per_forward"] == 0.0


def test_settings_hash_is_canonical_and_leaves_the_seed_out() -> None:
    expected = hashlib.sha256(b'{"steps":48,"stop":["END"],"t_max":0.8}').hexdigest()
    assert settings_hash(SETTINGS) == expected
    assert settings_hash({**dict(reversed(SETTINGS.items())), "seed": 6, "stop": ["END"]}) == expected
    assert settings_hash({**SETTINGS, "steps": 47}) != expected


def test_settings_become_plain_json() -> None:
    value = {
        "pins": {3: 7},
        "stop": ("a",),
        "eos": frozenset({2, 1}),
        "bound": math.inf,
        "none": None,
        "on": True,
    }
    assert plain(value) == {
        "pins": {"3": 7},
        "stop": ["a"],
        "eos": [1, 2],
        "bound": "inf",
        "none": None,
        "on": True,
    }
    settings_hash(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_lines_refuse_what_json_has_no_word_for(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"logprob": value})


@settings(deadline=None)
@given(
    text=st.text(st.characters(codec=None) | st.sampled_from("\x85\u2028\u2029\x7f\x9b\n\r\v\ud800\udfff"))
)
def test_any_string_is_one_line_that_parses_back(text: str) -> None:
    line = dumps({"id": text})
    lone = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert parsed(line) == {"id": lone}
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in line)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff\ud800b"])
def test_lone_surrogates_are_replaced(text: str) -> None:
    assert "\ufffd" in parsed(dumps({"id": text}))["id"]
    assert "\\ud" not in dumps({"id": text})


@settings(deadline=None)
@given(parts=st.lists(st.binary(max_size=6), max_size=8))
def test_any_bytes_can_be_written(vocabulary: Any, parts: list[bytes]) -> None:
    record = completed(vocabulary, *parts, logprobs=True)
    read = parsed(dumps(record))
    assert read == json.loads(json.dumps(record))
    assert read["text"] == b"".join(parts).decode(errors="replace")
    assert b"".join(bytes(token["bytes"]) for token in read["logprobs"]) == b"".join(parts)


def test_entries_follow_the_stream(vocabulary: Any) -> None:
    stream = TextStream(vocabulary)
    stream.push(vocabulary.emitted(b"a", "<eos>"))
    entries = token_entries(stream.tokens, vocabulary=vocabulary, logprobs_of="raw")
    assert [(token["token"], token["bytes"]) for token in entries] == [("a", [97]), ("<eos>", [])]
