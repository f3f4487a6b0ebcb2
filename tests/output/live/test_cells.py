"""Widths and escapes: what a terminal shows, cell by cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgen.output.live.cells import clusters, text_width, visible, width


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("fox", 3),
        ("日本語", 6),
        ("e\u0301o\u0302\u0323", 2),
        ("👩", 2),
        ("👩\u200d👩\u200d👧", 2),
        ("👍🏽", 2),
        ("🇫🇷🇩🇪", 4),
        ("❤\ufe0f", 2),
        ("한국", 4),
        ("·", 1),
        ("", 0),
    ],
)
def test_widths(text, cells):
    assert text_width(text) == cells


def test_sequences_stay_together():
    assert list(clusters("a👩\u200d👧e\u0301🇫🇷🇩🇪x")) == ["a", "👩\u200d👧", "e\u0301", "🇫🇷", "🇩🇪", "x"]


@given(st.text())
def test_clusters_are_the_text_and_none_is_wider_than_two_cells(text):
    found = list(clusters(text))
    assert "".join(found) == text
    assert all(0 <= width(cluster) <= 2 for cluster in found)


@given(st.text())
def test_nothing_visible_is_obeyed_by_a_terminal(text):
    for char in visible(text).replace("\n", ""):
        assert char >= " "
        assert not "\x7f" <= char <= "\x9f"
        assert char not in "\u2028\u2029\u202e\u2066"


def test_controls_are_shown_by_their_number():
    assert visible("\x1b[31m\u202e\r\tz\n") == "\\x1b[31m\\u202e\\x0d    z\n"
