"""build_prompt: the checkpoint's own template, BOS exactly once, and refusals that say what to do."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import BOS, CHANNEL, THINK, TURN, TURN_END, tiny_tokenizer

from dgen.errors import CheckpointError, ContextError, DgenError, UsageError
from dgen.prompt import build_prompt, check_messages

TOKENIZER = tiny_tokenizer()
USER = {"role": "user", "content": "the fox"}


def with_template(template: str | None) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def shown(ids: tuple[int, ...], tokenizer: Any = TOKENIZER) -> str:
    return tokenizer.decode(list(ids))


def test_a_prompt_is_one_user_turn_of_the_template() -> None:
    ids = build_prompt(TOKENIZER, prompt=" the fox ")
    assert shown(ids) == "<bos><|turn>user\nthe fox<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    assert ids == build_prompt(TOKENIZER, messages=[{"role": "user", "content": " the fox "}])


def test_it_equals_what_transformers_makes_of_the_template() -> None:
    messages = [USER, {"role": "assistant", "content": "yes"}, USER]
    for think in (False, True):
        encoded = TOKENIZER.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=think, return_dict=True
        )
        assert list(build_prompt(TOKENIZER, messages=messages, think=think)) == encoded["input_ids"]


def test_thinking_is_passed_to_the_template() -> None:
    ids = build_prompt(TOKENIZER, prompt="the fox", think=True)
    assert THINK in ids
    assert CHANNEL not in ids
    assert shown(ids).endswith("<|turn>model\n")


def test_a_system_text_comes_first() -> None:
    ids = build_prompt(TOKENIZER, prompt="the fox", system="no tea")
    assert shown(ids).startswith("<bos><|turn>system\nno tea<turn|>\n<|turn>user\n")
    assert build_prompt(TOKENIZER, prompt="the fox", system=" ") == build_prompt(TOKENIZER, prompt="the fox")
    developer = [{"role": "developer", "content": "no tea"}, USER]
    assert build_prompt(TOKENIZER, messages=developer) == ids


def test_raw_text_is_bos_and_the_text() -> None:
    ids = build_prompt(TOKENIZER, prompt=" the fox", raw=True)
    assert shown(ids) == "<bos> the fox"
    assert ids.count(BOS) == 1
    assert build_prompt(TOKENIZER, prompt="", raw=True) == (BOS,)


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{{ messages[0]['content'] }}",
        "{{ messages[0]['content'] }}",
        "{{ bos_token }}{{ bos_token }}{{ messages[0]['content'] }}",
    ],
)
def test_bos_stands_first_exactly_once_whoever_adds_it(template: str) -> None:
    ids = build_prompt(with_template(template), prompt="the fox")
    assert ids == build_prompt(TOKENIZER, prompt="the fox", raw=True)
    assert build_prompt(TOKENIZER, prompt="<bos>the fox", raw=True) == ids


def test_a_tokenizer_without_bos_gets_none() -> None:
    tokenizer = with_template("{{ messages[0]['content'] }}")
    tokenizer.bos_token = None
    assert BOS not in build_prompt(tokenizer, prompt="the fox")
    assert BOS not in build_prompt(tokenizer, prompt="the fox", raw=True)
    with pytest.raises(UsageError, match="no BOS"):
        build_prompt(tokenizer, prompt="", raw=True)


def test_control_tokens_in_the_text_are_encoded_as_transformers_does() -> None:
    ids = build_prompt(TOKENIZER, prompt="a<turn|><|turn>b", raw=True)
    assert [index for index in ids if index in (TURN, TURN_END)] == [TURN_END, TURN]


def test_text_parts_are_joined_and_unused_fields_may_be_null() -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "fox"}]
    message = {"role": "user", "content": parts, "name": None}
    assert check_messages([message]) == [USER]


def test_reasoning_of_earlier_turns_reaches_the_template() -> None:
    earlier = {"role": "assistant", "content": "yes", "reasoning": "sky"}
    turns = check_messages([USER, earlier, USER])
    assert turns[1] == earlier
    assert "sky" not in shown(build_prompt(TOKENIZER, messages=[USER, earlier, USER]))
    echo = with_template("{% for m in messages %}{{ m.reasoning or '' }}{% endfor %}")
    assert shown(build_prompt(echo, messages=[USER, earlier, USER])) == "<bos>sky"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "either a prompt or messages"),
    "both": ({"prompt": "a", "messages": [USER]}, "either a prompt or messages"),
    "empty prompt": ({"prompt": " \n"}, "the prompt is empty"),
    "system with raw": ({"prompt": "a", "system": "b", "raw": True}, "system text needs the chat template"),
    "think with raw": ({"prompt": "a", "think": True, "raw": True}, "thinking needs the chat template"),
    "messages with raw": ({"messages": [USER], "raw": True}, "messages need the chat template"),
    "two systems": (
        {"messages": [{"role": "system", "content": "a"}, USER], "system": "b"},
        "have a system message already",
    ),
    "no list": ({"messages": "hello"}, "non-empty list"),
    "no messages": ({"messages": []}, "non-empty list"),
    "no role": ({"messages": [USER, {"content": "a"}]}, "message 2 has no role"),
    "no content": ({"messages": [{"role": "user"}]}, "message 1 has no role and content"),
    "odd role": ({"messages": [{"role": "tool", "content": "a"}]}, "the role tool"),
    "odd key": ({"messages": [{**USER, "tool_calls": [1]}]}, "tool_calls"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "has image_url as content",
    ),
    "number": ({"messages": [{"role": "user", "content": 5}]}, "has a number as content"),
    "null": ({"messages": [{"role": "user", "content": None}]}, "has null as content"),
    "a bare text": ({"messages": [{"role": "user", "content": ["a"]}]}, "a bare text in a list as content"),
    "no text in a part": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": [1]}]}]},
        "has a list as content",
    ),
    "empty message": ({"messages": [{"role": "user", "content": " "}]}, "message 1 is empty"),
    "assistant last": ({"messages": [USER, {"role": "assistant", "content": "a"}]}, "from assistant"),
    "late system": ({"messages": [USER, {"role": "system", "content": "a"}, USER]}, "must come first"),
    "no unicode": ({"prompt": "a\udcff", "raw": True}, "no valid text"),
    "no unicode in a turn": ({"prompt": "a\udcff"}, "no valid text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_nothing_is_refused_with_a_hint(name: str) -> None:
    arguments, words = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        build_prompt(TOKENIZER, **arguments)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_thinking_without_a_switch_in_the_template_is_refused() -> None:
    tokenizer = with_template("{{ messages[0]['content'] }}")
    with pytest.raises(UsageError, match="no switch for thinking"):
        build_prompt(tokenizer, prompt="a", think=True)


def test_a_checkpoint_without_a_template_points_to_raw() -> None:
    tokenizer = with_template(None)
    with pytest.raises(CheckpointError, match="no chat template") as caught:
        build_prompt(tokenizer, prompt="a")
    assert "--raw" in caught.value.hint
    assert build_prompt(tokenizer, prompt="a", raw=True)[0] == BOS


@pytest.mark.parametrize("template", ["{{ messages[", "{{ 1 / 0 }}", "{{ raise_exception('not\ntoday') }}"])
def test_a_failing_template_is_one_line(template: str) -> None:
    with pytest.raises(DgenError, match="chat template refuses") as caught:
        build_prompt(with_template(template), prompt="a")
    assert "\n" not in caught.value.message


class Counted:
    """The tiny tokenizer, and how many characters it was given."""

    def __init__(self) -> None:
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        self.characters += len(text)
        return TOKENIZER.encode(text, **options)


@pytest.mark.parametrize("raw", [False, True])
def test_a_text_that_cannot_fit_is_refused_by_its_beginning(raw: bool) -> None:
    tokenizer = Counted()
    with pytest.raises(ContextError, match=r"far too long: 800 of its .* the context has 100") as caught:
        build_prompt(tokenizer, prompt="the fox " * 100_000, raw=raw, most=100)
    assert caught.value.hint
    assert tokenizer.characters == 800


def test_a_text_that_may_fit_is_encoded_in_full() -> None:
    for text, most in (("the fox", 10), ("the fox " * 200, 1000)):
        assert build_prompt(TOKENIZER, prompt=text, most=most) == build_prompt(TOKENIZER, prompt=text)
    # Long in characters, and short in tokens.
    seldom = Counted()
    seldom.encode = lambda text, **_: [5] * (len(text) // 16)
    assert len(build_prompt(seldom, prompt="a" * 1600, raw=True, most=100)) == 101
