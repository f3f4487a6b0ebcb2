"""The run: mixed requests on few slots, memory that runs out, interruptions; each record is its line's alone."""

from __future__ import annotations

import json
from functools import partial
from unittest.mock import patch

import pytest
from batching import LAYERS, Crowded, batch, by_id, generator, read_lines, stream_batch, write_lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dgen.batch.source import Shard
from dgen.errors import UsageError
from dgen.output.schema import schema
from dgen.settings import Layer

VALIDATOR = Draft202012Validator(schema())
PROMPTS = ["a cat", "red fox", "the sun", "tea", "broken", "a broken hat", "we run", "a " * 400]


@st.composite
def requests(draw):
    line = {
        "prompt": draw(st.sampled_from(PROMPTS)),
        "max_tokens": draw(st.integers(1, 20)),
        "steps": draw(st.integers(1, 6)),
    }
    optional = {
        "seed": st.integers(0, 5),
        "t_max": st.sampled_from([0.8, 1.5, 3.0]),
        "greedy": st.just(True),
        "stability": st.integers(0, 3),
        "top_k": st.integers(1, 9),
        "logprobs": st.integers(0, 4),
        "logprob_ids": st.lists(st.integers(0, 470), max_size=2),
        "logprobs_of": st.sampled_from(["raw", "tempered"]),
        "stop": st.lists(st.sampled_from(["a", "e", "the", " "]), min_size=1, max_size=2),
        "raw": st.booleans(),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), unique=True, max_size=4)):
        line[name] = draw(optional[name])
    if line.get("greedy"):
        line.pop("t_max", None)
    return line


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(requests(), min_size=1, max_size=6),
    slots=st.integers(1, 5),
    room=st.integers(1, 5),
    patience=st.integers(1, 8),
    cuts=st.lists(st.integers(1, 4), max_size=3),
    ahead=st.booleans(),
)
def test_a_record_is_the_same_whoever_shares_the_batch(
    tmp_path_factory, lines, slots, room, patience, cuts, ahead
):
    folder = tmp_path_factory.mktemp("mixed")
    source = write_lines(folder / "in", lines)
    batch(source, folder / "alone", generator(num_slots=1))
    alone = by_id(folder / "alone")
    assert set(alone) == {str(number) for number in range(1, len(lines) + 1)}

    made = generator(num_slots=slots, kind=type("Room", (Crowded,), {"room": room}))
    made.engine._steps.ahead = ahead
    with patch("dgen.batch.room._PATIENCE", patience):
        for cut in cuts:
            batch(source, folder / "out", made, interrupt_after=cut)
        batch(source, folder / "out", made)
    assert by_id(folder / "out") == alone
    assert not made.denoiser.held

    for key, record in alone.items():
        VALIDATOR.validate({**record, "timing": {}})
        line = lines[int(key) - 1]
        assert {name: record["settings"][name] for name in ("max_tokens", "steps")} == {
            name: line[name] for name in ("max_tokens", "steps")
        }
        tokens = record["usage"]["completion_tokens"]
        assert tokens <= line["max_tokens"]
        rows = record["logprobs"]
        failed = record["finish_reason"] == "error"
        too_long = len(line["prompt"]) > 400
        breaks = "broken" in line["prompt"] and line["steps"] > 1
        assert too_long <= failed <= (too_long or breaks)
        if breaks and line.get("stability", 1) > 0:  # else it may have converged before its logits break
            assert failed
        if record["settings"]["logprobs"] is None or (failed and not record["usage"]["prompt_tokens"]):
            assert rows is None
        else:
            assert len(rows) == tokens
            assert [row["position"] for row in rows] == list(range(tokens))
            assert all(len(row["top_logprobs"]) == record["settings"]["logprobs"] for row in rows)


def test_two_equal_prompts_differ_and_a_seed_repeats_them(tmp_path):
    lines = [
        {"prompt": "a cat"},
        {"prompt": "a cat"},
        {"prompt": "a cat", "seed": 3},
        {"prompt": "a cat", "seed": 3},
    ]
    batch(write_lines(tmp_path / "in", lines), tmp_path / "out")
    found = by_id(tmp_path / "out")
    assert found["1"]["text"] != found["2"]["text"]
    assert found["3"]["text"] == found["4"]["text"]
    again = [{"id": "1", "prompt": "a cat", "seed": found["1"]["seed"]}]
    batch(write_lines(tmp_path / "again", again), tmp_path / "repeated")
    assert by_id(tmp_path / "repeated")["1"]["text"] == found["1"]["text"]


def test_a_record_does_not_depend_on_its_shard_or_its_neighbours(tmp_path):
    lines = [{"id": f"x{n}", "prompt": "a cat"} for n in range(7)]
    source = write_lines(tmp_path / "in", lines)
    batch(source, tmp_path / "whole")
    parts = {}
    for index in (1, 2, 3):
        batch(source, tmp_path / f"part{index}", shard=Shard(index, 3))
        parts |= by_id(tmp_path / f"part{index}")
    assert parts == by_id(tmp_path / "whole")


def test_slots_are_filled_as_they_become_free(tmp_path):
    lines = [{"prompt": "a cat", "max_tokens": 30 if n == 0 else 4, "steps": 3} for n in range(7)]
    made = generator(num_slots=2)
    batch(write_lines(tmp_path / "in", lines), tmp_path / "out", made)
    admitted = [slot for slot, _ in made.denoiser.prefilled]
    assert len(admitted) == 7
    # One request keeps its slot while the others pass through the second.
    assert sorted([admitted.count(0), admitted.count(1)])[0] <= 2


def test_when_memory_runs_out_fewer_run_and_none_fails(tmp_path):
    source = write_lines(tmp_path / "in", [{"prompt": f"a cat {n}"} for n in range(12)])
    batch(source, tmp_path / "whole", generator(num_slots=1))
    tally, told = batch(source, tmp_path / "out", generator(num_slots=8, kind=Crowded))
    assert (tally.done, tally.failed) == (12, 0)
    fewer = [f"out of memory: going on with {limit} at a time for now" for limit in (4, 2)]
    assert told[:2] == fewer
    assert set(told[2:]) <= {fewer[1]}  # three are tried again
    assert by_id(tmp_path / "out") == by_id(tmp_path / "whole")


class Jealous(Crowded):
    """Reads a long prompt only while nothing else runs."""

    room = 8

    def prefill(self, slot, ids):
        self.longest = 60 if self.held else 10_000
        super().prefill(slot, ids)


def test_one_long_prompt_does_not_keep_the_others_from_their_slots(tmp_path):
    lines = [{"prompt": f"a cat {n}", "max_tokens": 6, "steps": 2} for n in range(50)]
    lines[5]["prompt"] = "tea " * 80
    source = write_lines(tmp_path / "in", lines)
    made = generator(num_slots=4, kind=Jealous)
    tally, told = batch(source, tmp_path / "out", made)
    assert (tally.done, tally.failed) == (50, 0)
    assert told[-1] == "out of memory: going on with 1 at a time for now"
    assert made.engine.max_running == 4
    batch(source, tmp_path / "whole", generator(num_slots=1))
    assert by_id(tmp_path / "out") == by_id(tmp_path / "whole")


def test_none_fails_where_a_further_one_is_tried_in_vain(tmp_path):
    """Two that fail together have been let in under different limits."""
    lines = [{"prompt": f"a cat {n}", "max_tokens": 6, "steps": 2} for n in range(60)]
    source = write_lines(tmp_path / "in", lines)
    tally, told = batch(
        source, tmp_path / "out", generator(num_slots=2, kind=type("One", (Crowded,), {"room": 1}))
    )
    assert (tally.done, tally.failed) == (60, 0)
    assert (
        told == ["out of memory: going on with 1 at a time for now"] * 3
    )  # then after 8 ends, then after 32
    batch(source, tmp_path / "whole", generator(num_slots=1))
    assert by_id(tmp_path / "out") == by_id(tmp_path / "whole")


def test_a_request_that_no_memory_is_enough_for_fails_alone_and_the_others_get_their_slots_back(tmp_path):
    kind = type("Small", (Crowded,), {"longest": 60, "room": 8})
    lines = [{"prompt": "tea " * 80}, *[{"prompt": f"a cat {n}"} for n in range(20)]]
    made = generator(num_slots=4, kind=kind)
    tally, _ = batch(write_lines(tmp_path / "in", lines), tmp_path / "out", made)
    assert (tally.done, tally.failed) == (20, 1)
    assert made.engine.max_running == 4
    failed = by_id(tmp_path / "out")["1"]
    assert "out of memory" in failed["error"]
    assert failed["finish_reason"] == "error"


def test_failures_are_records_and_are_run_again(tmp_path):
    lines = [{"prompt": "a cat"}, {"prompt": "broken"}, {"prompt": "tea", "max_tokens": 10_000}]
    source = write_lines(tmp_path / "in", lines)
    tally, told = batch(source, tmp_path / "out")
    assert (tally.done, tally.failed) == (1, 2)
    assert [text.split(":")[0] for text in told] == ["line 3", "line 2"]
    found = by_id(tmp_path / "out")
    assert "not a distribution" in found["2"]["error"]
    assert "positions" in found["3"]["error"]
    for record in read_lines(tmp_path / "out"):
        VALIDATOR.validate(record)
    lines[1]["prompt"] = "mended"
    del lines[2]["max_tokens"]
    tally, _ = batch(write_lines(source, lines), tmp_path / "out")
    assert (tally.before, tally.done, tally.failed) == (1, 2, 0)
    assert {record["error"] for record in by_id(tmp_path / "out").values()} == {None}


def test_a_streams_bad_line_fails_under_its_id_and_is_run_again(tmp_path):
    bad = [
        {"id": "x", "promt": "a cat"},
        {"custom_id": "y", "body": {"messages": [], "n": 2}},
        "no line at all",
    ]
    tally = stream_batch([*bad, {"id": "z", "prompt": "tea"}], tmp_path / "out")
    assert (tally.done, tally.failed) == (1, 3)
    for record in read_lines(tmp_path / "out"):
        VALIDATOR.validate(record)
    found = by_id(tmp_path / "out")
    assert set(found) == {"x", "y", "z", None}
    assert "did you mean 'prompt'" in found["x"]["error"]
    assert found["y"]["response"]["status_code"] == 400
    assert "n must be 1" in found["y"]["error"]["message"]

    good = {"custom_id": "y", "body": {"messages": [{"role": "user", "content": "hi"}]}}
    again = [{"id": "x", "prompt": "a cat"}, good, {"id": "z", "prompt": "tea"}]
    tally = stream_batch(again, tmp_path / "out")
    assert (tally.before, tally.done, tally.failed) == (1, 2, 0)
    assert set(by_id(tmp_path / "out")) == {"x", "y", "z"}


def test_a_second_line_of_an_id_never_stands_for_the_first(tmp_path):
    lines = [{"id": "x", "prompt": "a cat"}, {"id": "x", "prompt": "tea"}, {"id": "x", "promt": "tea"}]
    tally = stream_batch(lines, tmp_path / "out")
    assert (tally.done, tally.failed) == (1, 2)
    first = next(record for record in read_lines(tmp_path / "out") if record["id"] == "x")
    for again in (lines, lines[1:], lines[2:]):
        tally = stream_batch(again, tmp_path / "out")
        assert (tally.before, tally.done) == (1, 0)
        assert tally.failed == min(len(again), 2)
        records = read_lines(tmp_path / "out")
        assert [record for record in records if record["id"] is not None] == [first]


def test_a_line_that_comes_again_corrected_is_run(tmp_path):
    stream_batch([{"id": "x", "promt": "a cat"}, {"id": "x", "prompt": "a cat"}], tmp_path / "out")
    assert {record["finish_reason"] == "error" for record in read_lines(tmp_path / "out")} == {True, False}
    tally = stream_batch([{"id": "x", "prompt": "a cat"}], tmp_path / "out")
    assert (tally.before, tally.done, tally.failed) == (1, 0, 0)
    assert set(by_id(tmp_path / "out")) == {"x"}


def test_nothing_is_run_twice(tmp_path):
    source = write_lines(tmp_path / "in", [{"prompt": "a cat"}, {"prompt": "tea"}])
    batch(source, tmp_path / "out")
    before = (tmp_path / "out").read_bytes()
    made = generator()
    tally, _ = batch(source, tmp_path / "out", made)
    assert (tally.before, tally.left) == (2, 0)
    assert not made.denoiser.prefilled
    assert (tmp_path / "out").read_bytes() == before


def test_lines_may_be_added_and_removed_failures_vanish(tmp_path):
    source = write_lines(tmp_path / "in", [{"id": "a", "prompt": "a cat"}, {"id": "b", "prompt": "broken"}])
    batch(source, tmp_path / "out")
    write_lines(source, [{"id": "c", "prompt": "tea"}, {"id": "a", "prompt": "a cat"}])
    batch(source, tmp_path / "out")
    assert set(by_id(tmp_path / "out")) == {"a", "c"}


LINES = [{"id": "a", "prompt": "a cat"}, {"id": "b", "prompt": "tea", "seed": 4}]


@pytest.mark.parametrize(
    ("lines", "layers", "says"),
    [
        (
            LINES,
            (Layer("flag", {"max_tokens": 20, "steps": 4, "seed": 1}),),
            "steps was 5 and is 4 now (line 1)",
        ),
        (LINES, (Layer("flag", {"max_tokens": 20, "steps": 5, "seed": 2}),), "seed was 1 and is 2 now"),
        ([{**LINES[0], "stop": "x"}, LINES[1]], LAYERS, 'stop was [] and is ["x"] now (line 1)'),
        ([LINES[0], {**LINES[1], "seed": 5}], LAYERS, "seed was 4 and is 5 now (line 2)"),
        ([LINES[0], {"id": "b", "prompt": "tea"}], LAYERS, "seed was 4 and is "),
        ([{**LINES[0], "logprobs": 2}, LINES[1]], LAYERS, "logprobs was null and is 2 now"),
        ([{**LINES[0], "prompt": "a dog"}, LINES[1]], LAYERS, "the prompt of id 'a' (line 1)"),
        ([LINES[0]], LAYERS, "it holds the id 'b', which is not in the input"),
    ],
)
def test_an_output_made_otherwise_is_refused_with_the_difference(tmp_path, lines, layers, says):
    batch(write_lines(tmp_path / "in", LINES), tmp_path / "out")
    before = (tmp_path / "out").read_bytes()
    with pytest.raises(UsageError) as caught:
        batch(write_lines(tmp_path / "in", lines), tmp_path / "out", layers=layers)
    assert says in caught.value.message
    assert "--overwrite" in caught.value.hint
    assert (tmp_path / "out").read_bytes() == before


def edited(record, **changes):
    return {**record, **changes}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (partial(edited, model="other"), 'model was "other" and is "scripted" now'),
        (partial(edited, revision="abc"), 'revision was "abc" and is null now'),
        (lambda record: {"type": "completion", "id": "a"}, "line 1 of"),
        (lambda record: [record], "line 1 of"),
    ],
)
def test_records_of_another_kind_are_refused(tmp_path, change, says):
    source = write_lines(tmp_path / "in", LINES)
    batch(source, tmp_path / "out", generator(num_slots=1))
    first, second = read_lines(tmp_path / "out")
    (tmp_path / "out").write_text(f"{json.dumps(change(first))}\n{json.dumps(second)}\n")
    with pytest.raises(UsageError) as caught:
        batch(source, tmp_path / "out")
    assert says in caught.value.message


def test_an_output_that_holds_an_id_twice_is_refused(tmp_path):
    source = write_lines(tmp_path / "in", LINES)
    batch(source, tmp_path / "out")
    first, *_ = (tmp_path / "out").read_text().splitlines()
    with (tmp_path / "out").open("a") as file:
        file.write(first + "\n")
    with pytest.raises(UsageError, match="twice"):
        batch(source, tmp_path / "out")
