"""A trace: lines that validate, that are small, and that give the events back."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from traces import HEADER, TOKENS, VOCABULARY, events, trace_text

from dgen.engine.events import Converged, Denoised
from dgen.errors import UsageError
from dgen.output.trace import TraceWriter, _changes, _spans
from dgen.output.trace_reader import parse_trace, read_trace
from dgen.output.trace_schema import trace_schema

VALIDATOR = Draft202012Validator(trace_schema())


def records(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def parsed(text: str):
    return parse_trace(text.encode(), name="x.jsonl")


@pytest.mark.parametrize("logprobs", [True, False])
def test_every_line_validates_and_every_field_is_described(logprobs):
    Draft202012Validator.check_schema(trace_schema())
    found = records(trace_text(logprobs=logprobs))
    for record in found:
        VALIDATOR.validate(record)
    assert [r["type"] for r in found] == ["header", "step", "step", "step", "canvas", "step", "canvas", "end"]


@pytest.mark.parametrize(
    "damage",
    [
        {"accepted": [[0]]},
        {"accepted": [[-1, 2]]},
        {"changes": [[0]]},
        {"entropy": [None]},
        {"names": {"x": "a"}},
        {"names": {"1": 5}},
        {"more": 1},
        {"temperature": -1},
    ],
    ids=str,
)
def test_the_schema_refuses_what_is_none(damage):
    step = records(trace_text())[1]
    VALIDATOR.validate(step)
    assert not VALIDATOR.is_valid({**step, **damage})


def test_reading_gives_the_events_back():
    trace = parsed(trace_text())
    written = [event for event in events() if isinstance(event, Denoised)]
    read = [step.event for canvas in trace.canvases for step in canvas.steps]
    for ours, theirs in zip(read, written, strict=True):
        assert (ours.canvas, ours.step, ours.draft, ours.accepted) == (
            theirs.canvas,
            theirs.step,
            theirs.draft,
            theirs.accepted,
        )
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-4)
        assert ours.mean_entropy == pytest.approx(theirs.mean_entropy, abs=1e-6)
    converged = [event for event in events() if isinstance(event, Converged)]
    for canvas, theirs in zip(trace.canvases, converged, strict=True):
        assert canvas.converged.converged_by == theirs.converged_by
        assert [t.token_id for t in canvas.converged.tokens] == [t.token_id for t in theirs.tokens]
        assert [t.top for t in canvas.converged.tokens] == [t.top for t in theirs.tokens]
    assert [step.changed for step in trace.canvases[0].steps] == [21, 20, 13]
    assert trace.end["finish_reason"] == "eos"
    assert trace.header["prompt_ids"] == HEADER["prompt_ids"]


def test_a_trace_names_each_of_its_tokens_once():
    found = records(trace_text())
    named = [token_id for record in found for token_id in record.get("names", {})]
    assert len(named) == len(set(named)) == len(TOKENS)
    vocabulary = parsed(trace_text()).vocabulary
    for token_id in range(len(TOKENS)):
        assert vocabulary.piece(token_id) == VOCABULARY.piece(token_id)
        assert vocabulary.is_special(token_id) == VOCABULARY.is_special(token_id)


def test_each_line_is_there_as_soon_as_its_step_is(tmp_path):
    path = tmp_path / "t.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        writer = TraceWriter(stream, vocabulary=VOCABULARY, header=HEADER)
        for number, event in enumerate(events()[:3], start=2):
            writer.see(event)
            assert len(path.read_text(encoding="utf-8").splitlines()) == number


@pytest.mark.parametrize("cut", range(1, 8))
def test_what_a_killed_run_left_is_read(cut):
    text = trace_text(cut=cut)
    torn = trace_text().splitlines()[cut][:-3]
    for rest in ("", torn):
        trace = parsed(text + rest)
        assert trace.end is None
        assert trace.torn == (cut + 1 if rest else None)
        assert sum(len(canvas.steps) for canvas in trace.canvases) == sum(
            record["type"] == "step" for record in records(text)
        )


def test_a_last_line_without_its_newline_counts_when_it_is_whole():
    assert parsed(trace_text().rstrip("\n")).end is not None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no trace: it is empty"),
        (b'{"type":', "its first line is torn"),
        (b"hello\n", "line 1 of 'x.jsonl' is no line of a trace: it is not JSON"),
        (b"[]\n", "line 1 of 'x.jsonl' is no line of a trace: it is not a JSON object"),
        (b"\xff\xfe\n", "line 1 of 'x.jsonl' is no line of a trace: it is not "),
        (b"[" * 100_000 + b"\n", "line 1 of 'x.jsonl' is no line of a trace: it is not JSON"),
        (b"\n", "line 1 of 'x.jsonl' is no line of a trace: it is empty"),
        (b'{"type":"header","trace":99}\n', "expected a header of version 1, not 99"),
        (b'{"type":"completion"}\n', "a trace begins with a header"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_trace_is_refused(data, says):
    with pytest.raises(UsageError) as caught:
        parse_trace(data, name="x.jsonl")
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 250


PYTHONS = (
    *("Error", "object", "NoneType", "'int'", "'str'", "char 0", "line 1 column", "unpack", "subscriptable"),
    *("iterable", "out of range", "delimiter", "codec", "argument"),
)


def assert_plain(message: str) -> None:
    """None of Python's own words, which help nobody who has a file."""
    assert not [
        word for word in PYTHONS if word in message.replace("a JSON object", "").replace("an object", "")
    ]


DAMAGES = [
    (1, {"canvas_len": 0}),
    (1, {"canvas_len": 10**12}),
    (1, {"model": 5}),
    (1, {"revision": 5}),
    (1, {"settings": None}),
    (1, {"prompt_ids": ["a"]}),
    (1, {"names": {"0": {"special": 3}}}),
    (2, {"step": 1}),
    (2, {"canvas": 7}),
    (2, {"accepted": [[5, 2]]}),
    (2, {"accepted": [[0, 9999]]}),
    (2, {"accepted": [[4, 6], [5, 7]]}),
    (2, {"changes": [[0, [1, 2]]]}),
    (2, {"changes": [[10**9, [1]]]}),
    (2, {"entropy": [0.0]}),
    (2, {"entropy": ["a"] * len(TOKENS)}),
    (2, {"temperature": True}),
    (2, {"time": None}),
    (3, {"changes": [[20, [1, 2]]]}),
    (3, {"changes": [[-3, [1]]]}),
    (5, {"tokens": list(range(30))}),
    (5, {"converged_by": "magic"}),
    (5, {"logprobs": {"logprob": []}}),
    (5, {"canvas": 1}),
    (8, {"finish_reason": []}),
    (8, {"tokens": -1}),
    (8, {"type": "other"}),
]


@pytest.mark.parametrize(("line", "damage"), DAMAGES, ids=str)
def test_a_line_that_does_not_hold_together_is_named(line, damage):
    lines = trace_text().splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), **damage})
    with pytest.raises(UsageError, match=f"line {line} of 'x.jsonl'") as caught:
        parsed("\n".join(lines) + "\n")
    assert_plain(caught.value.message)
    if "names" not in damage and "canvas" not in damage and "step" not in damage:
        assert next(iter(damage)) in caught.value.message


def refusal(lines: list[str]) -> str:
    """What is said of a trace; nothing where it is read."""
    try:
        parsed("\n".join(lines) + "\n")
    except UsageError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    "value", [5, None, "x", [5], [[5]], [["x", "y"]], {"a": 1}, True, -1, 1e400], ids=str
)
def test_any_field_of_another_form_is_refused_in_plain_words(value):
    lines = trace_text().splitlines()
    for at, line in enumerate(lines):
        record = json.loads(line)
        for key in record:
            spoilt = json.dumps({**record, key: value})
            missing = json.dumps({name: kept for name, kept in record.items() if name != key})
            for damaged in (spoilt, missing):
                assert_plain(refusal([*lines[:at], damaged, *lines[at + 1 :]]))


def test_numbers_that_json_does_not_have_are_refused():
    lines = trace_text().replace('"temperature":0.8', '"temperature":NaN', 1)
    with pytest.raises(UsageError, match="line 2"):
        parsed(lines)
    with pytest.raises(UsageError, match="line 2"):
        parsed(lines.replace("NaN", "1e999", 1))


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match="can't read the trace"):
        read_trace(str(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match="can't read the trace"):
        read_trace(str(tmp_path))


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_spans_are_the_mask(mask):
    spans = _spans(mask)
    assert [p for a, b in spans for p in range(a, b)] == [p for p, accepted in enumerate(mask) if accepted]
    assert all(first[1] < second[0] for first, second in pairwise(spans))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_changes_turn_one_canvas_into_the_next(pairs):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    canvas = list(before)
    for first, ids in _changes(before, after):
        canvas[first : first + len(ids)] = ids
    assert canvas == after
    assert sum(len(ids) for _, ids in _changes(before, after)) == sum(a != b for a, b in pairs)


@given(st.data())
def test_a_trace_that_was_tampered_with_is_read_or_refused_and_breaks_nothing(data):
    from dgen.output.report.page import report

    text = bytearray(trace_text().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from(
                [b"", b"0", b"9" * 30, b"-", b"1e9", b'"', b"[]", b"{}", b"null", b"\xff", b"\n", b","]
            )
        )
    try:
        trace = parse_trace(bytes(text), name="x")
    except UsageError:
        return
    report(trace)


class TestBytes:
    """Where a trace's bytes come from."""

    def test_gzip_is_unpacked_whatever_the_name(self, tmp_path):
        for name in ("t.jsonl.gz", "t.jsonl"):
            (tmp_path / name).write_bytes(gzip.compress(trace_text().encode()))
            assert read_trace(str(tmp_path / name)).end is not None

    def test_members_one_behind_the_other_are_one_file(self, tmp_path):
        path = tmp_path / "t.gz"
        parts = [trace_text().encode()[:500], trace_text().encode()[500:]]
        path.write_bytes(b"".join(map(gzip.compress, parts)))
        assert read_trace(str(path)).end is not None

    def test_what_gzip_was_cut_off_is_read_as_far_as_it_goes(self, tmp_path):
        path = tmp_path / "t.gz"
        packed = gzip.compress(trace_text().encode(), compresslevel=0)
        path.write_bytes(packed[: len(packed) // 2])
        trace = read_trace(str(path))
        assert (trace.end, len(trace.canvases)) == (None, 1)
        assert trace.torn is not None

    def test_a_damaged_archive_is_refused(self, tmp_path):
        path = tmp_path / "t.gz"
        packed = bytearray(gzip.compress(trace_text().encode()))
        packed[20:40] = b"\0" * 20
        path.write_bytes(packed)
        with pytest.raises(UsageError, match="is a damaged gzip file"):
            read_trace(str(path))

    def test_an_archive_that_would_fill_memory_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr("dgen.output.trace_file._MOST_BYTES", 1000)
        path = tmp_path / "t.gz"
        path.write_bytes(gzip.compress(b" " * 5000))
        with pytest.raises(UsageError, match="unpacks to more than"):
            read_trace(str(path))
