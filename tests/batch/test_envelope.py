"""OpenAI's batch lines: what they may ask, what is refused, and the answers' form."""

from __future__ import annotations

import json

import pytest
from batching import LAYERS, batch, by_id, read_lines, write_lines
from jsonschema import Draft202012Validator

from dgen.batch.envelope import unwrap
from dgen.batch.item import Reader
from dgen.batch.lines import Line, LineError
from dgen.output.schema import schema

HI = [{"role": "user", "content": "hi"}]
VALIDATOR = Draft202012Validator(schema())


def line(custom_id="a", **body):
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": HI, **body},
    }


def read(fields):
    return Reader(LAYERS, model="scripted").read(Line(1, json.dumps(fields).encode()))


def test_a_body_becomes_settings():
    item = read(
        line(
            max_completion_tokens=9,
            temperature=0.5,
            top_p=0.9,
            seed=4,
            stop=["x"],
            logprobs=True,
            top_logprobs=3,
            steps=7,
        )
    )
    found = item.resolved.settings
    assert (item.id, item.envelope, item.messages) == ("a", True, HI)
    assert (found.max_tokens, found.t_min, found.t_max, found.top_p, found.seed) == (9, 0.5, 0.5, 0.9, 4)
    assert (found.stop, found.logprobs, found.steps) == (("x",), 3, 7)


def test_fields_that_ask_for_nothing_are_accepted():
    nothing = {
        "model": "scripted",
        "n": 1,
        "stream": False,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "tools": [],
        "logit_bias": {},
        "response_format": {"type": "text"},
        "user": "me",
        "metadata": {"a": "b"},
        "functions": None,
        "logprobs": False,
    }
    assert read(line(**nothing)).request_hash == read(line()).request_hash


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"custom_id": "a"}, "the body must be an object"),
        ({"body": {"messages": HI}}, "custom_id must be"),
        ({**line(), "custom_id": 5}, "custom_id must be"),
        ({**line(), "method": "GET"}, "the method must be POST"),
        ({**line(), "url": "/v1/embeddings"}, "the url must be /v1/chat/completions"),
        ({**line(), "prompt": "x"}, "unknown field 'prompt' beside custom_id"),
        (line(messages=None), "neither a prompt nor messages"),
        (line(model="gpt-4o"), "asks for the model 'gpt-4o', and this run has 'scripted'"),
        (line(n=2), "n must be 1"),
        (line(n=True), "n must be 1"),
        (line(stream=True), "not streamed"),
        (line(frequency_penalty=0.5), "frequency_penalty can't be honoured: penalties presume"),
        (line(frequency_penalty=False), "frequency_penalty can't be honoured"),
        (line(tools=[{"type": "function"}]), "tools can't be honoured"),
        (line(logit_bias={"5": 1}), "logit_bias can't be honoured"),
        (line(response_format={"type": "json_object"}), "response_format can't be honoured"),
        (line(temperature=3), "temperature must be a number from 0 to 2"),
        (line(temperature="1"), "temperature must be a number from 0 to 2"),
        (line(temperature=1, t_max=1), "leave one out"),
        (line(max_tokens=5, max_completion_tokens=6), "differ"),
        (line(logprobs=5), "logprobs must be true or false"),
        (line(top_logprobs=5), "top_logprobs needs logprobs"),
        (line(logprobs=True, top_logprobs=21), "from 0 to 20"),
        (line(max_token=5), "unknown field 'max_token' in the body: did you mean 'max_tokens'?"),
        (line(prompt="x"), "unknown field 'prompt' in the body"),
        ({**line(), "body": [1]}, "the body must be an object"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(fields, reason):
    with pytest.raises(LineError) as caught:
        read(fields)
    assert reason in str(caught.value)


def test_answers_come_in_the_envelope_with_rows_for_tokens(tmp_path):
    asked = [
        line("plain"),
        line("rows", logprobs=True, top_logprobs=2, logprob_ids=[5]),
        line("long", max_tokens=100_000),
        line("nan", messages=[{"role": "user", "content": "broken"}]),
        {"id": "own", "prompt": "hi"},
    ]
    batch(write_lines(tmp_path / "in", asked), tmp_path / "out")
    for record in read_lines(tmp_path / "out"):
        VALIDATOR.validate(record)
    found = by_id(tmp_path / "out")
    assert found["own"]["type"] == "completion"
    plain, rows = found["plain"]["response"]["body"], found["rows"]["response"]["body"]
    assert plain["choices"][0]["logprobs"] is None
    content = rows["choices"][0]["logprobs"]["content"]
    assert len(content) == rows["usage"]["completion_tokens"] > 0
    assert all(len(row["top_logprobs"]) == 3 for row in content)
    text = b"".join(bytes(row["bytes"] or []) for row in content).decode(errors="replace")
    assert text.strip() == rows["choices"][0]["message"]["content"].strip()
    for name, status in (("long", 400), ("nan", 500)):
        failed = found[name]
        assert failed["response"]["status_code"] == status
        assert failed["error"]["message"] == failed["response"]["body"]["error"]["message"]
        assert unwrap(failed)["finish_reason"] == "error"
    assert "positions" in found["long"]["error"]["message"]


def test_an_envelope_resumes_too(tmp_path):
    source = write_lines(tmp_path / "in", [line(str(n), seed=n) for n in range(6)])
    batch(source, tmp_path / "whole")
    tally, _ = batch(source, tmp_path / "out", interrupt_after=2)
    assert 2 <= tally.done < 6
    tally, _ = batch(source, tmp_path / "out")
    assert tally.before >= 2
    assert by_id(tmp_path / "out") == by_id(tmp_path / "whole")
