"""Given text as ids and back: byte for byte, the space before a gap left to the gap, nothing that can't be text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_tokenizer

from dgen.errors import UsageError
from dgen.infill.pieces import encode, encode_pieces, fill_text
from dgen.infill.template import parse_template
from dgen.vocabulary import Vocabulary

TOKENIZER = tiny_tokenizer()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def text(token_ids: tuple[int, ...]) -> str:
    return b"".join(map(VOCABULARY.piece, token_ids)).decode()


def test_the_space_before_a_gap_is_left_to_it():
    pieces = encode_pieces(parse_template("a cat {{2}} on({{1}})"), TOKENIZER, VOCABULARY, spaced=True)
    assert [text(piece) for piece in pieces.ids] == ["a cat", " on(", ")"]
    assert pieces.spaced == (True, False)
    pinned = encode_pieces(parse_template("a cat {{2}} on({{1}})"), TOKENIZER, VOCABULARY, spaced=False)
    assert [text(piece) for piece in pinned.ids] == ["a cat ", " on(", ")"]
    assert pinned.spaced == (False, False)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁<"), max_size=30))
def test_any_text_is_pinned_byte_for_byte(given_text):
    assert text(encode(given_text, TOKENIZER, VOCABULARY)) == given_text


@pytest.mark.parametrize("bad", ["a <eos> b", "<|turn>", "a▁b", "\ud800"])
def test_what_would_come_back_changed_is_refused(bad):
    with pytest.raises(UsageError) as caught:
        encode(bad, TOKENIZER, VOCABULARY)
    assert caught.value.hint


def test_a_filling_is_text_with_the_space_that_stands_before_it_taken_off():
    assert fill_text(ids(" red fox"), VOCABULARY, spaced=True) == "red fox"
    assert fill_text(ids(" red fox"), VOCABULARY, spaced=False) == " red fox"
    assert fill_text(ids("red"), VOCABULARY, spaced=False, opens=True) == "red"


def test_nothing_visible_may_stand_in_a_gap_only_where_that_is_allowed():
    assert fill_text([], VOCABULARY, spaced=False, blank=True) == ""
    assert fill_text([], VOCABULARY, spaced=False, opens=True, blank=True) == ""
    assert fill_text([], VOCABULARY, spaced=False) is None


@pytest.mark.parametrize(
    ("token_ids", "options"),
    [
        (ids("red"), {"spaced": True}),
        (ids(" "), {"spaced": True}),
        (ids("  "), {"spaced": False}),
        (ids("\n"), {"spaced": False}),
        (ids(" red"), {"spaced": False, "opens": True}),
        ([*ids("red"), 1], {"spaced": False}),
        (
            ids("é")[:1] if len(ids("é")) > 1 else [TOKENIZER.convert_tokens_to_ids("<0xC3>")],
            {"spaced": False},
        ),
    ],
    ids=[
        "no space",
        "space alone",
        "spaces",
        "newline",
        "opens with a space",
        "control token",
        "half a character",
    ],
)
def test_what_cannot_stand_in_a_gap_is_none(token_ids, options):
    assert fill_text(token_ids, VOCABULARY, **options) is None
