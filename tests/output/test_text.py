"""What a text stream shows, holds back, splits off and keeps, case by case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dgen import errors
from dgen.errors import SettingsError
from dgen.output.text import TextStream

OPEN, CLOSE, EOS = "<|channel>", "<channel|>", "<eos>"
Symbols = list[bytes | str]


def run(vocabulary: Any, *pushes: Symbols, **options: Any) -> tuple[TextStream, list[list[Any]]]:
    """A stream after the pushes and finish; the pieces of each call."""
    stream = TextStream(vocabulary, **options)
    tokens = vocabulary.emitted(*(symbol for push in pushes for symbol in push))
    calls, at = [], 0
    for push in pushes:
        calls.append(stream.push(tokens[at : at + len(push)]))
        at += len(push)
    calls.append(stream.finish())
    return stream, calls


def texts(calls: list[list[Any]]) -> list[str]:
    return ["".join(piece.text for piece in call if piece.channel == "answer") for call in calls]


def all_released(calls: list[list[Any]]) -> list[int]:
    return [position for call in released(calls) for position in call]


def released(calls: list[list[Any]]) -> list[list[int]]:
    return [[emitted.position for piece in call for emitted in piece.tokens] for call in calls]


# Characters and tokens


def test_character_split_over_pushes_comes_whole_with_its_tokens(vocabulary: Any) -> None:
    _, calls = run(vocabulary, [b"x\xf0\x9f"], [b"\x98"], [b"\x80!"])
    assert texts(calls) == ["x", "", "😀!", ""]
    assert released(calls) == [[0], [], [1, 2], []]


def test_character_cut_off_by_the_end_becomes_a_replacement(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"a", b"\xe2\x82"])
    assert texts(calls) == ["a", "\ufffd"]
    assert released(calls) == [[0], [1]]
    assert stream.kept == 2


def test_special_token_cuts_off_an_incomplete_character(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"\xe2\x82", EOS, b"\xac"])
    assert stream.answer == "\ufffd\ufffd"
    assert released(calls) == [[0, 1, 2], []]


def test_token_without_bytes_does_not_cut_off_a_character(vocabulary: Any) -> None:
    stream, _ = run(vocabulary, [b"\xe2", b"", b"\x82\xac"])
    assert stream.answer == "€"


def test_special_tokens_are_released_without_text(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [EOS, b"a", EOS])
    assert stream.answer == "a"
    assert released(calls) == [[0, 1, 2], []]


@pytest.mark.parametrize(
    "symbols", [[b"\xed\xa0", b"\x80X"], [b"\xed", b"\xa0\xe2X"], [b"\xed\xa0", EOS, b"X"]]
)
def test_surrogates_in_utf8_are_replaced_byte_by_byte(vocabulary: Any, symbols: Symbols) -> None:
    stream, _ = run(vocabulary, symbols, stops=["X"])
    broken = sum(len(b"" if symbol == EOS else symbol) for symbol in symbols) - 1
    assert stream.answer == "\ufffd" * broken
    assert stream.kept == 2


def test_nothing_pushed_gives_nothing(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [])
    assert calls == [[], []]
    assert (stream.answer, stream.reasoning, stream.kept, stream.stopped) == ("", "", 0, False)


# Stop strings


def test_stop_string_split_over_pushes_never_leaks(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"say", b" EN"], [b"D now"], stops=["END"])
    assert texts(calls) == ["say ", "", ""]
    assert stream.stopped
    assert stream.kept == 2
    assert released(calls) == [[0, 1], [], []]


def test_held_tail_is_released_when_it_turns_out_harmless(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"EN"], [b"GINE"], [b"EN"], stops=["END"])
    assert texts(calls) == ["", "ENGIN", "E", "EN"]
    assert released(calls) == [[], [0, 1], [], [2]]
    assert not stream.stopped


def test_token_that_begins_with_the_stop_is_dropped_and_one_that_overlaps_is_kept(vocabulary: Any) -> None:
    assert run(vocabulary, [b"a", b"STOP"], stops=["STOP"])[0].kept == 1
    overlapping, calls = run(vocabulary, [b"aST", b"OP"], stops=["STOP"])
    assert overlapping.kept == 1
    assert texts(calls) == ["a", ""]


def test_character_begun_before_the_stop_keeps_all_its_tokens(vocabulary: Any) -> None:
    stream, _ = run(vocabulary, [b"\xe2\x82", b"\xacX", b"y"], stops=["X"])
    assert stream.answer == "€"
    assert stream.kept == 2


def test_special_token_before_the_stop_is_kept_and_one_inside_is_not(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"x", EOS, b"a", EOS, b"b", EOS], stops=["ab"])
    assert stream.answer == "x"
    assert released(calls) == [[0, 1], []]
    assert stream.kept == 2


def test_special_token_after_an_overlapping_token_is_dropped(vocabulary: Any) -> None:
    assert run(vocabulary, [b"xa", EOS, b"b"], stops=["ab"])[0].kept == 1


def test_earliest_start_wins_even_if_a_later_stop_ends_first(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"xabc"], [b"d"], stops=["bc", "abcd"])
    assert texts(calls) == ["x", "", ""]
    assert stream.stopped


def test_shorter_of_two_stops_ends_the_answer_at_once(vocabulary: Any) -> None:
    stream = TextStream(vocabulary, ["ab", "abc"])
    stream.push(vocabulary.emitted(b"xab"))
    assert stream.stopped
    assert stream.answer == "x"


def test_later_stop_counts_once_the_earlier_one_is_ruled_out(vocabulary: Any) -> None:
    assert run(vocabulary, [b"xabc"], [b"e"], stops=["bc", "abcd"])[0].answer == "xa"
    at_the_end, calls = run(vocabulary, [b"xabc"], stops=["bc", "abcd"])
    assert texts(calls) == ["x", "a"]
    assert at_the_end.stopped


def test_pushes_after_a_stop_change_nothing(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"aX\xe2"], [b"c"], stops=["X"])
    assert calls[1:] == [[], []]
    assert (stream.answer, stream.kept) == ("a", 1)


def test_stop_is_not_looked_for_in_thoughts_but_across_them(vocabulary: Any) -> None:
    stream, _ = run(
        vocabulary, [OPEN, b"thought\nEND", CLOSE, b"ok E", OPEN, b"thought\n?", CLOSE, b"ND"], stops=["END"]
    )
    assert stream.reasoning == "END"
    assert stream.answer == "ok "
    assert stream.kept == 4


def test_empty_stop_string_is_refused(vocabulary: Any) -> None:
    with pytest.raises(SettingsError, match="stop string 2 of 2 is empty"):
        TextStream(vocabulary, ["a", ""])


# Thoughts


def test_thought_is_split_from_the_answer_and_its_label_never_shown(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [OPEN, b"thought", b"\n", b"hm", CLOSE, b"Yes", EOS])
    assert (stream.reasoning, stream.answer) == ("hm", "Yes")
    assert [(piece.channel, piece.text, len(piece.tokens)) for piece in calls[0]] == [
        ("reasoning", "hm", 5),
        ("answer", "Yes", 2),
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_markers_and_label_cut_by_canvas_borders(vocabulary: Any, size: int) -> None:
    symbols: Symbols = [b"A", OPEN, b"thou", b"ght", b"\nhm", b"\n", CLOSE, b"\n", b"B"]
    pushes = [symbols[at : at + size] for at in range(0, len(symbols), size)]
    stream, _ = run(vocabulary, *pushes)
    assert (stream.reasoning, stream.answer) == ("hm\n", "A\nB")


def test_thought_that_never_closes_leaves_the_answer_empty(vocabulary: Any) -> None:
    stream, _ = run(vocabulary, [OPEN, b"thought\n", b"on and on", EOS])
    assert (stream.reasoning, stream.answer) == ("on and on", "")


@pytest.mark.parametrize("label", [[b"thou"], [b"thought"], [b"thought\n"], []])
def test_thought_cut_off_early_shows_nothing(vocabulary: Any, label: Symbols) -> None:
    stream, calls = run(vocabulary, [OPEN, *label])
    assert (stream.reasoning, stream.answer) == ("", "")
    assert all_released(calls) == list(range(len(label) + 1))


def test_immediately_closed_thought_is_empty_reasoning(vocabulary: Any) -> None:
    stream, _ = run(vocabulary, [OPEN, b"thought\n", CLOSE, b"Hi"])
    assert (stream.reasoning, stream.answer) == ("", "Hi")


def test_closing_marker_without_a_start_adds_nothing(vocabulary: Any) -> None:
    stream, calls = run(vocabulary, [b"a", CLOSE, b"b"])
    assert (stream.reasoning, stream.answer) == ("", "ab")
    assert released(calls) == [[0, 1, 2], []]


def test_channel_of_another_label_is_answer_without_the_label(vocabulary: Any) -> None:
    stream, _ = run(vocabulary, [OPEN, b"thought\nhm", OPEN, b"final\nYes\nNo"])
    assert (stream.reasoning, stream.answer) == ("hm", "Yes\nNo")


def test_unsplit_thought_stays_in_the_answer_without_its_label(vocabulary: Any) -> None:
    stream, _ = run(vocabulary, [OPEN, b"thought\nhm", CLOSE, b"Yes"], split_reasoning=False)
    assert (stream.reasoning, stream.answer) == ("", "hmYes")


def test_vocabulary_without_channels_splits_nothing() -> None:
    class Plain:
        channel_start = channel_end = None

        def piece(self, token_id: int) -> bytes:
            return bytes([token_id])

        def token(self, token_id: int) -> str:
            return chr(token_id)

        def is_special(self, token_id: int) -> bool:
            return False

    from dgen.engine.events import Emitted

    stream = TextStream(Plain())
    stream.push([Emitted(byte, at, 0, 0, 0.5, 0.0) for at, byte in enumerate("thought\né".encode())])
    assert stream.answer == "thought\né"


def test_output_rooms_load_nothing_heavy() -> None:
    code = (
        "import sys, dgen.output.text, dgen.output.records, dgen.output.schema, dgen.cli.sink;"
        "print([name for name in ('torch', 'transformers', 'rich', 'typer', 'numpy') if name in sys.modules])"
    )
    root = Path(errors.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
