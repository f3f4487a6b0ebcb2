"""The chat layout, letter for letter, and the fast form of it held to the template of the shipped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builtin_recipe.template import CHAT_TEMPLATE, render
from transformers import AutoTokenizer

FOLDER = Path(__file__).parents[2] / "dgen" / "builtin"
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": "  What is entropy? "}
CHAT = [
    {"role": "user", "content": "7 + 5"},
    {"role": "assistant", "content": "<|channel>thought\n7 + 5 = 12<channel|>7 plus 5 is 12."},
    {"role": "user", "content": "Hello"},
]
READY = "<|turn>model\n<|channel>thought\n<channel|>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize(
    ("messages", "thinking", "expected"),
    [
        ([USER], False, f"<bos><|turn>user\nWhat is entropy?<turn|>\n{READY}"),
        (
            [SYSTEM, USER],
            False,
            f"<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nWhat is entropy?<turn|>\n{READY}",
        ),
        (
            [USER],
            True,
            "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nWhat is entropy?<turn|>\n<|turn>model\n",
        ),
        (
            [SYSTEM, USER],
            True,
            "<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nWhat is entropy?<turn|>\n<|turn>model\n",
        ),
        (
            CHAT,
            False,
            "<bos><|turn>user\n7 + 5<turn|>\n<|turn>model\n7 plus 5 is 12.<turn|>\n<|turn>user\nHello<turn|>\n"
            + READY,
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image"}]}],
            False,
            f"<bos><|turn>user\nHello<|image|><turn|>\n{READY}",
        ),
    ],
)
def test_layout_is_exact(
    tokenizer: Any, messages: list[dict[str, Any]], thinking: bool, expected: str
) -> None:
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    assert text == expected


def test_fast_form_equals_the_template(tokenizer: Any) -> None:
    for system in (None, "Be kind."):
        for thinking in (False, True):
            turns = [("user", " 7 + 5 "), ("model", "7 plus 5 is 12."), ("user", "Thanks!\nBye")]
            messages = [{"role": role.replace("model", "assistant"), "content": text} for role, text in turns]
            if system:
                messages.insert(0, {"role": "system", "content": system})
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
            assert text == render(turns, system=system, thinking=thinking)


def test_without_a_generation_prompt_the_last_turn_is_closed(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(CHAT[:2], tokenize=False)
    assert text == "<bos><|turn>user\n7 + 5<turn|>\n<|turn>model\n7 plus 5 is 12.<turn|>\n"


def test_tokenized_prompt_begins_with_one_bos(tokenizer: Any) -> None:
    ids = tokenizer.apply_chat_template([USER], tokenize=True, add_generation_prompt=True)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


def test_an_unknown_role_is_refused(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_shipped_template_is_the_recipes() -> None:
    assert (FOLDER / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE
