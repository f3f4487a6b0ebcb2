"""Texts with gaps: what is read, what is refused, what stays literal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgen.errors import UsageError
from dgen.infill.template import Gap, Template, parse_template


def test_sizes_and_open_gaps_are_read():
    template = parse_template("The {{4}} of {{}} is {{ 12 }}.")
    assert template == Template(("The ", " of ", " is ", "."), (Gap(most=4), Gap(), Gap(most=12)))


def test_an_escaped_brace_is_literal_and_lone_closing_braces_are_too():
    assert parse_template(r'\{{x}} {"a": {"b": {{2}}}} \{{').pieces == ('{{x}} {"a": {"b": ', "}} {{")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no gap", "no gap"),
        ("", "no gap"),
        (r"\{{4}}", "no gap"),
        ("a {{4 b", "begins at '{{4 b' is not closed"),
        ("a {{}} and {{ a very long tail that goes on", "'{{ a very long tail that...' is not closed"),
        ("a {{0}}", "from 1 to 4096, not '0'"),
        ("a {{-1}}", "not '-1'"),
        ("a {{four}}", "not 'four'"),
        ("a {{5000}}", "not '5000'"),
        ("a {{" + "9" * 5000 + "}}", "from 1 to 4096"),
        ("a {{²}}", "not '²'"),
        ("a {{1}}{{2}}", "two gaps touch"),
    ],
)
def test_what_is_no_template_is_refused_with_a_hint(text, says):
    with pytest.raises(UsageError) as caught:
        parse_template(text)
    assert says in caught.value.message
    assert caught.value.hint


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=5))
def test_any_text_around_gaps_comes_back_byte_for_byte(pieces):
    # A backslash or brace at a border would run into the gap's own.
    pieces = [piece.strip("\\{}") or "x" for piece in pieces]
    template = parse_template("{{3}}".join(piece.replace("{{", r"\{{") for piece in pieces))
    assert template.pieces == tuple(pieces)
    fills = tuple(f"<{number}>" for number in range(len(pieces) - 1))
    whole = pieces[0] + "".join(fill + piece for fill, piece in zip(fills, pieces[1:], strict=True))
    assert template.filled(fills) == whole
