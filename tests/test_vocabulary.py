"""Vocabulary: the bytes of the pieces are the text, for both kinds of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import BOS, CHANNEL, CHANNEL_END, SPECIALS, THINK, TURN, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dgen.vocabulary import Vocabulary

TEXTS = (
    "the fox sat on a hat",
    "  two leading spaces",
    "trailing  ",
    " ",
    "\n\n\tlines\r\n",
    "日本語と中文",
    "👩‍👩‍👧 and 🏳️‍🌈",
    "e\u0301 and é, o\u0302\u0323",
    "\x00\x1b[31m\x7f",
    "<0x41> is written out",
    "I is it. I is it, no?",
)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A GPT-style tokenizer of single bytes and two merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate([*alphabet, "th", "the", "<s>"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


TOKENIZERS = {"byte fallback": tiny_tokenizer(), "byte level": byte_level_tokenizer()}
VOCABULARIES = {name: Vocabulary.from_tokenizer(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def joined(kind: str, text: str) -> str:
    ids = TOKENIZERS[kind].encode(text, add_special_tokens=False)
    return b"".join(VOCABULARIES[kind].piece(index) for index in ids).decode()


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_joined_pieces_are_the_text(kind: str, text: str) -> None:
    assert joined(kind, text) == text


# The tokenizer itself turns a written ▁ into a space, and finds special tokens in text.
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_characters="▁<", exclude_categories=["Cs"])))
def test_joined_pieces_are_any_text(kind: str, text: str) -> None:
    assert joined(kind, text) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_agree_with_the_tokenizers_own_decoding(kind: str) -> None:
    text = "the fox, é and 日"
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert joined(kind, text) == tokenizer.decode(ids)


def test_special_tokens_add_nothing_and_say_so() -> None:
    vocabulary = VOCABULARIES["byte fallback"]
    for index, token in enumerate(SPECIALS):
        assert vocabulary.piece(index) == b""
        assert vocabulary.is_special(index)
        assert vocabulary.token(index) == token
    ordinary = TOKENIZERS["byte fallback"].encode("the", add_special_tokens=False)
    assert not any(vocabulary.is_special(index) for index in ordinary)


def test_ids_without_a_token_add_nothing_and_have_a_placeholder() -> None:
    vocabulary = VOCABULARIES["byte fallback"]
    assert vocabulary.size == len(TOKENIZERS["byte fallback"])
    beyond = vocabulary.size + 7
    assert vocabulary.piece(beyond) == b""
    assert vocabulary.token(beyond) == f"<unused {beyond}>"
    assert not vocabulary.is_special(beyond)


def test_a_byte_token_is_its_byte_even_where_that_is_no_character() -> None:
    vocabulary = VOCABULARIES["byte fallback"]
    index = TOKENIZERS["byte fallback"].convert_tokens_to_ids("<0xF0>")
    assert vocabulary.piece(index) == b"\xf0"


def test_marks_are_found_by_attribute_or_by_their_usual_spelling() -> None:
    vocabulary = VOCABULARIES["byte fallback"]
    assert (vocabulary.channel_start, vocabulary.channel_end, vocabulary.think) == (
        CHANNEL,
        CHANNEL_END,
        THINK,
    )

    bare = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer().backend_tokenizer)
    assert getattr(bare, "soc_token", None) is None
    again = Vocabulary.from_tokenizer(bare)
    assert (again.channel_start, again.channel_end, again.think) == (CHANNEL, CHANNEL_END, THINK)

    other = VOCABULARIES["byte level"]
    assert (other.channel_start, other.channel_end, other.think) == (None, None, None)


def test_special_flags_come_from_the_added_tokens_too() -> None:
    backend = byte_level_tokenizer()
    backend.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    backend.add_tokens(["plain"])
    vocabulary = Vocabulary.from_tokenizer(backend)
    assert vocabulary.is_special(backend.convert_tokens_to_ids("<tool>"))
    plain = backend.convert_tokens_to_ids("plain")
    assert vocabulary.piece(plain) == b"plain"


def test_it_can_be_made_by_hand() -> None:
    vocabulary = Vocabulary({BOS: "<bos>", TURN: "▁hi"}, special=[BOS])
    assert vocabulary.piece(TURN) == b" hi"
    assert vocabulary.piece(BOS) == b""
    literal = Vocabulary({0: "<0x41>"}, byte_fallback=False, replacements=())
    assert literal.piece(0) == b"<0x41>"
