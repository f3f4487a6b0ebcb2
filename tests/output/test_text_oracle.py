"""Streamed text equals what one gets from all tokens at once, however they are cut into pushes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgen.output.text import Piece, TextStream

OPEN, CLOSE, EOS = "<|channel>", "<channel|>", "<eos>"
Symbols = list[bytes | str]

SYMBOL = st.one_of(
    st.sampled_from([b"a", b"b", b"ab", b"ba", b"aab", b"\n", b"thought", b"thought\n", b"", b"b\n"]),
    st.sampled_from(
        [b"\xe2", b"\x82", b"\xac", b"\xe2\x82", b"\xacb", b"a\xf0\x9f", b"\x98\x80", "é€".encode()]
    ),
    st.binary(max_size=4),
    st.sampled_from([OPEN, CLOSE, EOS]),
)
STOPS = st.lists(st.text("ab€\n\ufffd", min_size=1, max_size=4), max_size=3)


def decoded(data: bytes) -> list[tuple[int, str]]:
    """(first byte, character) of the text, broken sequences replaced."""
    characters, at = [], 0
    while at < len(data):
        try:
            whole, broken_at, end = data[at:].decode(), len(data), len(data)
        except UnicodeDecodeError as error:
            broken_at, end = at + error.start, at + error.end
            whole = data[at:broken_at].decode()
        for character in whole:
            characters.append((at, character))
            at += len(character.encode())
        if broken_at < len(data):
            characters.append((broken_at, "\ufffd"))
        at = end
    return characters


def oracle(symbols: Symbols, stops: list[str]) -> tuple[str, str, int]:
    """Answer, reasoning and kept tokens: mark every character's channel, find the earliest stop, cut."""
    at, starts, runs = 0, [], [[0, b"", None]]
    for symbol in symbols:
        starts.append(at)
        if isinstance(symbol, bytes):
            runs[-1][1] += symbol
            at += len(symbol)
        else:
            runs.append([at, b"", symbol])
    marked, channel, label = [], "answer", None
    for first, data, marker in runs:
        if marker in (OPEN, CLOSE):
            channel, label = "answer", ("" if marker == OPEN else None)
        for offset, character in decoded(data):
            if label is None:
                marked.append((first + offset, character, channel))
            elif character == "\n":
                channel, label = ("reasoning" if label.strip() == "thought" else "answer"), None
            else:
                label += character
    answer = [(start, character) for start, character, channel in marked if channel == "answer"]
    text = "".join(character for _, character in answer)
    found = [text.find(stop) for stop in stops if stop in text]
    cut = answer[min(found)][0] if found else at + 1
    kept = sum(
        start < cut or (start == cut and not data_of(symbol))
        for start, symbol in zip(starts, symbols, strict=True)
    )
    parts = {
        name: "".join(character for start, character, channel in marked if channel == name and start < cut)
        for name in ("answer", "reasoning")
    }
    return parts["answer"], parts["reasoning"], kept


def data_of(symbol: bytes | str) -> bytes:
    return symbol if isinstance(symbol, bytes) else b""


@settings(deadline=None, max_examples=300)
@given(symbols=st.lists(SYMBOL, max_size=14), stops=STOPS, cuts=st.lists(st.integers(0, 14), max_size=5))
def test_any_split_equals_the_whole_text(
    vocabulary: Any, symbols: Symbols, stops: list[str], cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(symbols)) for cut in cuts), len(symbols)]
    pushes = [symbols[start:end] for start, end in pairwise(bounds)]
    stream, pieces = run(vocabulary, pushes, stops)
    answer, reasoning, kept = oracle(symbols, stops)
    assert (stream.answer, stream.reasoning, stream.kept) == (answer, reasoning, kept)
    assert "".join(piece.text for piece in pieces if piece.channel == "answer") == answer
    assert "".join(piece.text for piece in pieces if piece.channel == "reasoning") == reasoning
    assert [emitted.position for piece in pieces for emitted in piece.tokens] == list(range(kept))
    assert not any(stop in answer for stop in stops)
    whole, _ = run(vocabulary, [symbols], stops)
    assert stream.tokens == whole.tokens
    assert stream.stopped == whole.stopped


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=40), sizes=st.lists(st.integers(1, 3), max_size=40), stops=STOPS)
def test_plain_bytes_equal_decoding_everything_and_cutting(
    vocabulary: Any, data: bytes, sizes: list[int], stops: list[str]
) -> None:
    symbols: Symbols = []
    for size in sizes:
        symbols.append(data[:size])
        data = data[size:]
    symbols.append(data)
    text = b"".join(data_of(symbol) for symbol in symbols).decode(errors="replace")
    found = [text.find(stop) for stop in stops if stop in text]
    stream, _ = run(vocabulary, [[symbol] for symbol in symbols], stops)
    assert stream.answer == text[: min(found, default=len(text))]
    stream.answer.encode("utf-8")


@pytest.mark.parametrize(
    ("symbols", "stop", "kept"),
    [
        ([b"\xe2", b"\x82", b"X"], "X", 2),
        ([b"\xed", b"\xa0", EOS, b"X"], "\ufffdX", 1),
        ([b"\xed", b"\xa0", b"\xe2\x82\xac"], "\ufffd€", 1),
        ([b"\xf0\x9f", b"\x98", b"\xf0\x9f\x98", b"\x80"], "😀", 2),
    ],
)
def test_stop_beside_broken_characters_keeps_the_tokens_before_it(
    vocabulary: Any, symbols: Symbols, stop: str, kept: int
) -> None:
    assert run(vocabulary, [symbols], [stop])[0].kept == oracle(symbols, [stop])[2] == kept


def run(vocabulary: Any, pushes: list[Symbols], stops: list[str]) -> tuple[TextStream, list[Piece]]:
    """A finished stream and all its pieces."""
    stream = TextStream(vocabulary, stops)
    tokens = vocabulary.emitted(*(symbol for push in pushes for symbol in push))
    pieces, at = [], 0
    for push in pushes:
        pieces += stream.push(tokens[at : at + len(push)])
        at += len(push)
    return stream, [*pieces, *stream.finish()]
