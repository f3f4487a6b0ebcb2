"""Text or messages -> the token ids of a prompt, through the checkpoint's own chat template.

Knows a transformers tokenizer by its methods alone. The template is never copied or altered; what it does
with earlier turns (their thoughts, say) is its business. BOS stands first exactly once where the tokenizer
has one. Control tokens written inside the text are encoded as such, just as transformers encodes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dgen.errors import CheckpointError, ContextError, UsageError

ROLES = ("system", "developer", "user", "assistant")
_LEADING = ("system", "developer")
_KEYS = ("role", "content", "reasoning", "reasoning_content")
_THINK_SWITCH = "enable_thinking"
_MANY_CHARACTERS = 8
"""More of them than a token has on average, in any usual text."""


def build_prompt(
    tokenizer: Any,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    system: str | None = None,
    think: bool = False,
    raw: bool = False,
    most: int | None = None,
) -> tuple[int, ...]:
    """Encode one prompt.

    Args:
        prompt: a single user message, or plain text with `raw`; give this or `messages`.
        messages: {"role", "content"} mappings, the last one from the user; content is text or text parts.
        system: a system message put before the others; an empty one is as none.
        think: passed to the template as `enable_thinking`.
        raw: no template: BOS and the text. An empty text is allowed then, and means BOS alone.
        most: positions of the context. A text that is far longer is refused by its beginning; whether any other fits
            is the caller's to check.

    Raises:
        UsageError: nothing to encode, malformed messages, or a combination that means nothing.
        ContextError: the prompt can't fit `most` positions.
        CheckpointError: the checkpoint has no chat template.
    """
    turns = check_prompt(prompt=prompt, messages=messages, system=system, think=think, raw=raw)
    if prompt is not None and raw:
        return _encode_raw(tokenizer, prompt, most)
    return _encode(tokenizer, _render(tokenizer, turns, think=think), most)


def shared_length(
    tokenizer: Any, prompt_ids: Sequence[int], *, messages: Sequence[Mapping[str, Any]], think: bool = False
) -> int:
    """How many of a prompt's first ids stay when the conversation goes on: those before the generation prompt.

    Args:
        prompt_ids: what `build_prompt` made of the same messages and `think`.
    """
    turns = check_messages(messages)
    ids = _encode(tokenizer, _render(tokenizer, turns, think=think, answer_follows=False))
    differs = (at for at, (one, other) in enumerate(zip(ids, prompt_ids, strict=False)) if one != other)
    return next(differs, min(len(ids), len(prompt_ids)))


def check_prompt(
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    system: str | None = None,
    think: bool = False,
    raw: bool = False,
) -> list[dict[str, Any]]:
    """What can be said of a prompt without its checkpoint: the messages that its template will get; none if `raw`.

    Raises:
        UsageError: as in `build_prompt`.
    """
    if (prompt is None) == (messages is None):
        raise UsageError(
            "give either a prompt or messages", hint="Use --prompt, or messages in the input file."
        )
    if prompt is not None and not isinstance(prompt, str):
        raise UsageError(f"the prompt must be a text, not {kind_of(prompt)}", hint="Give one text.")
    if raw:
        _check_raw(prompt, system=system, think=think)
        return []
    if messages is not None:
        turns = check_messages(messages)
    elif prompt is not None and prompt.strip():
        turns = [{"role": "user", "content": prompt}]
    else:
        raise UsageError(
            "the prompt is empty", hint="Give some text, for example --prompt 'Tell me a story.'"
        )
    if system is not None and system.strip():
        if turns[0]["role"] in _LEADING:
            raise UsageError(
                "a system text, and messages that have a system message already", hint="Leave one out."
            )
        turns = [{"role": "system", "content": system}, *turns]
    return turns


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of `messages` with their content as one text.

    Raises:
        UsageError: no list of role-and-content mappings, an unknown role or key, content other than text, or
            a last message that isn't the user's.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UsageError(
            "messages must be a non-empty list", hint='For example [{"role": "user", "content": "Hi"}]'
        )
    turns = [_check_message(message, number) for number, message in enumerate(messages, 1)]
    last = turns[-1]["role"]
    if last != "user":
        raise UsageError(
            f"the last message is from {last}: there is nothing to answer",
            hint="End with a message of role user.",
        )
    return turns


def _check_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise UsageError(
            f"message {number} has no role and content", hint='Write {"role": ..., "content": ...}.'
        )
    role = message["role"]
    if role not in ROLES:
        raise UsageError(f"message {number} has the role {role}", hint=f"Use one of {', '.join(ROLES)}.")
    # Clients write unused fields as null.
    extra = next((key for key, value in message.items() if key not in _KEYS and value is not None), None)
    if extra is not None:
        raise UsageError(
            f"message {number} has {extra}, which dgen does not support", hint=f"Remove {extra}."
        )
    content = _text_of(message["content"], number)
    if not content.strip() and role != "assistant":
        raise UsageError(f"message {number} is empty", hint="Give it some text, or leave it out.")
    turn = {key: message[key] for key in _KEYS if message.get(key) is not None}
    return {**turn, "content": content}


def _text_of(content: Any, number: int) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise UsageError(
                f"message {number} has {_named(part)} as content: dgen reads text alone",
                hint='Write "..." or [{"type": "text", "text": "..."}].',
            )
        texts.append(part["text"])
    return "".join(texts)


def _named(part: Any) -> str:
    """A part of a message that is no text, by its own name where it has one."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    # A part of type text with something else in it is called by what that is.
    if kind == "text":
        return kind_of(part.get("text"))
    if isinstance(part, str):
        return "a bare text in a list"
    return kind if isinstance(kind, str) else kind_of(part)


def kind_of(value: Any) -> str:
    """What a value is in the words of JSON, which is how most of them were written; Python's where JSON has none."""
    words = {str: "a text", bool: "a truth value", int: "a number", float: "a number", type(None): "null"}
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return words.get(type(value), type(value).__name__)


def _render(tokenizer: Any, turns: list[dict[str, Any]], *, think: bool, answer_follows: bool = True) -> str:
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:
        raise CheckpointError(
            "this checkpoint has no chat template", hint="Use --raw to send the text as it is."
        ) from error
    if think and _THINK_SWITCH not in template:
        raise UsageError(
            f"this checkpoint's chat template has no switch for thinking ({_THINK_SWITCH})",
            hint="Use --no-think.",
        )
    try:
        text = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=answer_follows, **{_THINK_SWITCH: think}
        )
    except Exception as error:  # a template is a program of the checkpoint's, and may fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"the chat template refuses these messages: {reason}", hint="Check the roles and their order."
        ) from error
    return str(text)


def _check_raw(prompt: str | None, *, system: str | None, think: bool) -> None:
    if prompt is None:
        raise UsageError("messages need the chat template", hint="Leave --raw out, or give a prompt.")
    if system is not None:
        raise UsageError("a system text needs the chat template", hint="Leave --raw or --system out.")
    if think:
        raise UsageError(
            "thinking needs the chat template", hint="Leave --raw or --think (or DGEN_THINK) out."
        )


def _encode_raw(tokenizer: Any, prompt: str, most: int | None) -> tuple[int, ...]:
    ids = _encode(tokenizer, prompt, most)
    if not ids:
        raise UsageError(
            "the prompt is empty, and this checkpoint has no BOS to start from", hint="Give some text."
        )
    return ids


def _encode(tokenizer: Any, text: str, most: int | None = None) -> tuple[int, ...]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt is no valid text: {error.reason}", hint="Write it in UTF-8.") from error
    if most is not None:
        _refuse_hopeless(tokenizer, text, most)
    ids = _plain_ids(tokenizer, text)
    bos = tokenizer.bos_token_id
    if bos is not None:
        start = 0
        while ids[start : start + 1] == [bos]:
            start += 1
        ids = [bos, *ids[start:]]
    return tuple(ids)


def _refuse_hopeless(tokenizer: Any, text: str, most: int) -> None:
    """ContextError for a text whose beginning is too long by itself: tens of megabytes would take minutes to encode.

    What follows may change how a beginning is cut into tokens, but by a few of them at its end, and not by a quarter of
    the context.
    """
    part = text[: _MANY_CHARACTERS * most]
    if len(part) == len(text):
        return
    count = len(_plain_ids(tokenizer, part))
    if count > most + most // 4:
        raise ContextError(
            f"the prompt is far too long: {len(part)} of its {len(text)} characters make {count} tokens; "
            f"the context has {most}",
            hint="Shorten the prompt, or raise --max-context where it was given.",
        )


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    # The tokenizer's own additions are left out: some would end the prompt with EOS.
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))
