"""The region on a terminal: over itself while it lasts, and gone without a trace when text is written."""

from __future__ import annotations

import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal import Terminal

from dgen.output.live.frame import Style, rows_of
from dgen.output.live.screen import Lines, Screen

PLAIN = Style.ACCEPTED


class Tty(io.StringIO):
    """A stream whose writes a Terminal shows."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.terminal = Terminal(columns, rows)
        self.writes: list[str] = []

    def fileno(self) -> int:
        return 99

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.terminal.feed(text)
        return len(text)


@pytest.fixture
def tty(monkeypatch):
    def make(columns: int, rows: int) -> tuple[Tty, Screen]:
        stream = Tty(columns, rows)
        monkeypatch.setattr(
            os,
            "get_terminal_size",
            lambda number: os.terminal_size((stream.terminal.columns, stream.terminal.rows)),
        )
        return stream, Screen(stream, color=True)

    return make


def frame(text: str, columns: int) -> list:
    return rows_of([(text, PLAIN)], columns)


def test_a_frame_stands_below_the_text_and_the_cursor_behind_it(tty):
    stream, screen = tty(20, 6)
    stream.write("said")
    screen.wrote("said")
    screen.draw(frame("a draft", 20), "step 1")
    assert stream.terminal.lines() == ["said", "a draft", "step 1"]
    assert (stream.terminal.x, stream.terminal.y) == (4, 0)
    screen.hide()
    stream.write(" more")
    assert stream.terminal.lines() == ["said more"]


def test_a_smaller_frame_leaves_nothing_of_a_larger_one(tty):
    stream, screen = tty(20, 6)
    screen.draw(frame("one\ntwo\nthree", 20), "step 1")
    screen.draw(frame("1", 20), "s")
    assert stream.terminal.lines() == ["1", "s"]


def test_equal_frames_are_written_once_and_each_frame_in_one_write(tty):
    stream, screen = tty(20, 6)
    for _ in range(3):
        screen.draw(frame("one\ntwo", 20), "step 1")
    assert len(stream.writes) == 1


def test_after_a_resize_an_equal_frame_is_drawn_again(tty):
    stream, screen = tty(20, 6)
    screen.draw(frame("one", 20), "step 1")
    stream.terminal.columns = 30
    screen.draw(frame("one", 20), "step 1")
    assert len(stream.writes) == 2


def test_no_mode_outlives_a_frame(tty):
    stream, screen = tty(20, 6)
    screen.draw(frame("one", 20), "step 1")
    assert stream.terminal.wraps
    assert stream.writes[0].count("\x1b[?2026h") == stream.writes[0].count("\x1b[?2026l") == 1
    assert "\x1b[?25" not in stream.writes[0], "the cursor is never hidden, so it need not be shown again"


def test_colours_are_left_out_where_they_are_not_wanted_and_weights_are_not(tty):
    stream, _ = tty(40, 6)
    Screen(stream, color=False).draw([[("new", Style.NEW), ("draft", Style.DRAFT)]], "s")
    assert {"1", "2"} <= set(stream.terminal.styles)
    assert not [style for style in stream.terminal.styles if style.startswith(("3", "4", "9"))]


@pytest.mark.parametrize("size", [(7, 10), (40, 2), (40, 1), (1, 1)], ids=str)
def test_a_terminal_without_room_shows_no_frame(tty, size):
    stream, screen = tty(*size)
    screen.draw(frame("one", 20), "step 1")
    assert stream.writes == []


def test_a_terminal_that_went_away_is_no_reason_to_stop(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("gone")

    screen = Screen(Gone(), color=True)
    screen.draw(frame("one", 20), "s")
    screen.hide()


WORDS = st.lists(st.sampled_from([*"ab é日本\n", "e\u0301"]), max_size=60).map("".join)


@settings(deadline=None)
@given(
    st.integers(8, 24),
    st.integers(3, 9),
    st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), min_size=1, max_size=5),
    st.booleans(),
)
def test_whatever_was_drawn_only_the_text_remains(columns, rows, rounds, cleared):
    """Drafts of any size between texts of any length, from the screen's first cell or after a prompt."""
    shown, plain = Tty(columns, rows), Terminal(columns, rows)
    original = os.get_terminal_size
    os.get_terminal_size = lambda number: os.terminal_size((columns, rows))
    try:
        screen = Screen(shown, color=True)
        if not cleared:
            shown.terminal.feed("$ run\n")
            plain.feed("$ run\n")
        for text, drafts in rounds:
            for draft in drafts:
                screen.draw(frame(draft, columns), "step 1 of 48")
            screen.hide()
            for terminal in (shown.terminal, plain):
                terminal.feed(text)
            screen.wrote(text)
        screen.draw(frame("last", columns), "step")
        screen.hide()
    finally:
        os.get_terminal_size = original
    seen, expected = ("\n".join(t.lines()) for t in (shown.terminal, plain))
    # Where text and margin meet, a line may end in a break instead of a wrap: the same to the eye.
    assert seen.replace("\n", "").replace(" ", "") == expected.replace("\n", "").replace(" ", "")
    visible = [["".join(row).rstrip() for row in t.screen] for t in (shown.terminal, plain)]
    if not shown.terminal.scrollback and not plain.scrollback:
        assert visible[0] == visible[1]


def test_lines_are_appended_without_control_sequences_and_only_where_they_differ():
    stream = io.StringIO()
    lines = Lines(stream)
    lines.draw([[("one", Style.NEW)], []], "step 1")
    lines.draw([[("one", PLAIN)]], "step 2")
    lines.wrote("text")
    lines.draw([[("two", PLAIN)]], "step 3")
    assert stream.getvalue() == "[step 1]\none\n\n[step 3]\ntwo\n"
