"""Rows of a frame: styles by mask and entropy, tokens that share characters, no row wider than the terminal."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from traces import TOKENS, VOCABULARY, id_of

from dgen.output.live.cells import text_width, visible
from dgen.output.live.frame import Style, Texts, rows_of, shortened, styles_of

ACCEPTED, NEW, DRAFT, UNKNOWN = Style.ACCEPTED, Style.NEW, Style.DRAFT, Style.UNKNOWN


def texts(*tokens: str, style: Style = ACCEPTED) -> list:
    return Texts(VOCABULARY).of([id_of(token) for token in tokens], [style] * len(tokens))


def test_a_position_is_accepted_new_believed_or_unknown():
    accepted, entropy = (True, True, False, False), (2.0, 0.0, math.log(2), 0.7)
    assert styles_of(accepted, entropy, (True, False, True, True)) == [ACCEPTED, NEW, DRAFT, UNKNOWN]
    assert styles_of(accepted, entropy, ())[:2] == [NEW, NEW]


def test_acceptance_that_is_taken_back_is_not_shown_as_accepted():
    assert styles_of((False,), (0.1,), (True,)) == [DRAFT]


def test_unknown_positions_are_dots_and_special_tokens_nothing():
    assert texts("▁a", "<eos>", style=UNKNOWN) == [("·", UNKNOWN), ("·", UNKNOWN)]
    assert texts("▁a", "<eos>") == [(" a", ACCEPTED), ("", ACCEPTED)]


def test_bytes_that_are_one_character_together_are_shown_as_one():
    assert texts("<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>", "▁a") == [("🦊", ACCEPTED), (" a", ACCEPTED)]
    assert texts("<0xF0>", "<0x9F>", "▁a")[0] == ("\ufffd", ACCEPTED)


def test_a_character_is_as_unsure_as_the_least_sure_of_its_bytes():
    ids = [id_of(token) for token in ("<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>")]
    assert Texts(VOCABULARY).of(ids, [ACCEPTED, NEW, DRAFT, ACCEPTED]) == [("🦊", DRAFT)]


def test_marks_and_joiners_of_the_next_token_share_the_cell():
    rows = rows_of([("e", ACCEPTED), ("\u0301", NEW), ("👩", DRAFT), ("\u200d", DRAFT), ("👧x", NEW)], 80)
    assert rows == [[("e\u0301", ACCEPTED), ("👩\u200d👧", DRAFT), ("x", NEW)]]


def test_a_row_breaks_where_a_terminal_would():
    assert rows_of([("abc", ACCEPTED), ("defg", NEW)], 5) == [[("abc", ACCEPTED), ("de", NEW)], [("fg", NEW)]]
    assert rows_of([("abcd日本", DRAFT)], 5) == [[("abcd", DRAFT)], [("日本", DRAFT)]]
    assert rows_of([("a\n\nb", DRAFT)], 5) == [[("a", DRAFT)], [], [("b", DRAFT)]]


@given(
    st.lists(st.tuples(st.text(max_size=8).map(visible), st.sampled_from(list(Style))), max_size=12),
    st.integers(2, 30),
)
def test_no_row_is_too_wide_and_nothing_is_lost(spans, columns):
    rows = rows_of(spans, columns)
    assert all(text_width("".join(text for text, _ in row)) <= columns for row in rows)
    written = "\n".join("".join(text for text, _ in row) for row in rows)
    assert written.replace("\n", "") == "".join(text for text, _ in spans).replace("\n", "")


@given(st.lists(st.integers(0, len(TOKENS) - 1), max_size=40), st.data())
def test_the_text_of_a_canvas_is_that_of_its_tokens(ids, data):
    styles = data.draw(st.lists(st.sampled_from([ACCEPTED, NEW]), min_size=len(ids), max_size=len(ids)))
    found = "".join(text for text, _ in Texts(VOCABULARY).of(ids, styles))
    whole = b"".join(VOCABULARY.piece(i) for i in ids if not VOCABULARY.is_special(i)).decode(
        errors="replace"
    )
    escapes = {"\x1b": "\\x1b", "\u202e": "\\u202e"}
    if not any(VOCABULARY.is_special(i) for i in ids):  # which part bytes that would be one character
        assert found == "".join(escapes.get(char, char) for char in whole)


def test_a_status_gives_up_its_last_parts_first():
    parts = ["canvas 1, step 2", "3/64 accepted", "T 0.80"]
    assert shortened(parts, 80) == "canvas 1, step 2 · 3/64 accepted · T 0.80"
    assert shortened(parts, 33) == "canvas 1, step 2 · 3/64 accepted"
    assert shortened(parts, 8) == "canvas 1"
