"""Lines of any bytes: cut right, numbered right, and refused with a reason instead of a traceback."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgen.batch import lines
from dgen.batch.lines import Line, LineError, parse, split


@given(st.binary(max_size=200), st.lists(st.integers(1, 40), max_size=20))
def test_lines_do_not_depend_on_how_the_bytes_arrive(data, sizes):
    chunks, rest = [], data
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    found = list(split([*chunks, rest]))
    assert found == list(split([data]))
    plain = data.split(b"\n")
    plain[0] = plain[0].removeprefix(b"\xef\xbb\xbf")
    assert [(line.number, line.data) for line in found] == [
        (number, text) for number, text in enumerate(plain, 1) if text.strip()
    ]


def test_a_byte_order_mark_carriage_returns_and_blank_lines_are_passed_over():
    found = list(split([b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"b":2}\r\n{"c":3}']))
    assert [line.number for line in found] == [1, 4, 5]
    assert [parse(line) for line in found] == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_a_line_without_end_is_dropped_and_the_next_one_read(monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 2**20)
    chunks = [b'{"a":1}\n', *[b"x" * 2**19] * 5, b'\n{"b":2}\n']
    first, huge, last = split(chunks)
    assert (parse(first), parse(last), last.number) == ({"a": 1}, {"b": 2}, 3)
    assert not huge.data
    with pytest.raises(LineError, match="longer than 1 MiB"):
        parse(huge)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a": "\xff"}', "not UTF-8: byte 0xff at offset 7"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"{'a': 1}", "not JSON: expecting property name enclosed in double quotes at column 2"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON: extra data at column 10"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number"),
        (b'{"a": 1e999}', "beyond the largest number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b'{"a": "\x00"}', "not JSON"),
        (b'{"a": "broken', "not JSON: unterminated string starting at column 7"),
        (b"\x00\x00", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b"[1]", "not a JSON object but a list"),
        (b'"text"', "a text"),
        (b"null", "null"),
        (b"true", "a truth value"),
        (b"1", "a number"),
    ],
)
def test_what_is_no_strict_object_is_refused_with_a_reason(data, reason):
    with pytest.raises(LineError) as caught:
        parse(Line(1, data))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


def test_pairs_of_surrogates_and_escaped_nul_are_text():
    assert parse(Line(1, b'{"a": "\\ud83e\\udd8a \\u0000"}')) == {"a": "🦊 \x00"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_strict_objects_come_out_as_they_are(value):
    assert parse(Line(1, json.dumps(value).encode())) == value
