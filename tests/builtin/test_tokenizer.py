"""The tokenizer: every text comes back byte for byte, digits stand alone, markers are one token each."""

from __future__ import annotations

from pathlib import Path

import pytest
from builtin_recipe.corpus import World
from builtin_recipe.sizes import CANVAS
from builtin_recipe.tokenizer import SPECIALS, build_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

FOLDER = Path(__file__).parents[2] / "dgen" / "builtin"
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)

TEXTS = (
    "", " ", "   ", "  two leading", "trailing  ", "a  b   c", "\n\n\tx\r\n", "\x00\x07\x1b[31m\x7f", "日本語と中文。",
    "👩‍👩‍👧 and 🏳️‍🌈", "e\u0301 é ﬁ ǅ", "مرحبا שלום नमस्ते", "<0x41> <bos", "What's 17+5=22?",
    "\u200b\ufeff\u2028", "don't!!",
)  # fmt: skip


def round_trip(text: str) -> str:
    return TOKENIZER.decode(TOKENIZER(text, add_special_tokens=False).input_ids, skip_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str) -> None:
    assert round_trip(text) == text


# A written U+2581 comes back as the space that it stands for, and a written marker is that marker.
@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_characters="\u2581<", exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    assert round_trip(text) == text


def test_special_tokens_stand_first_and_have_their_names() -> None:
    assert TOKENIZER.convert_tokens_to_ids(list(SPECIALS)) == list(range(len(SPECIALS)))
    assert (
        TOKENIZER.pad_token_id,
        TOKENIZER.eos_token_id,
        TOKENIZER.bos_token_id,
        TOKENIZER.unk_token_id,
    ) == (0, 1, 2, 3)
    names = {
        "sot_token": "<|turn>", "eot_token": "<turn|>", "soc_token": "<|channel>", "eoc_token": "<channel|>",
        "think_token": "<|think|>", "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
    }  # fmt: skip
    for name, token in names.items():
        assert getattr(TOKENIZER, name) == token
        assert len(TOKENIZER(f"a{token}b", add_special_tokens=False).input_ids) == 3
    assert TOKENIZER.padding_side == "left"


def test_digits_are_tokens_of_their_own() -> None:
    tokens = TOKENIZER.tokenize("1234 and 56")
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("123456")


def test_plain_text_begins_with_bos() -> None:
    assert TOKENIZER("Hello").input_ids[0] == TOKENIZER.bos_token_id


def test_shipped_file_is_the_recipes_and_the_recipe_repeats() -> None:
    built = build_tokenizer(0).to_str()
    assert built == build_tokenizer(0).to_str()
    assert built == Tokenizer.from_file(str(FOLDER / "tokenizer.json")).to_str()


def test_short_answers_fit_one_canvas() -> None:
    asks = World().asks
    for kind in ("facts", "sums", "lists", "explanations", "poems", "small talk"):
        longest = max(len(TOKENIZER(a.answer, add_special_tokens=False).input_ids) for a in asks[kind])
        assert longest < CANVAS, kind
