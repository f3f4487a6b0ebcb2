"""A conversation as a file of JSON: its messages, as other tools write them, and the settings that were given.

Knows files and conversations. What a file says is checked as if it had been typed, and without a model as far as that
goes: importing this brings no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgen._version import __version__
from dgen.chat.changes import check_changeable
from dgen.errors import UsageError
from dgen.prompt import check_messages
from dgen.settings import Layer, resolve

if TYPE_CHECKING:
    from dgen.chat.conversation import Conversation, Message

VERSION = 1
_MARK = "dgen_chat"
_OWN = ("default", "checkpoint")
_TAKES = 'It must be a JSON object with "messages", a list of role and content; /save writes one.'


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds.

    Attributes:
        system: the system message, or None.
        messages: questions and answers, as in `Conversation`.
        unanswered: the last question, where it has no answer.
        changes: the settings that were given; None for none.
        model: the one that it was held with, if the file says so.
    """

    path: str
    system: str | None
    messages: tuple[Message, ...]
    unanswered: str | None
    changes: Layer | None
    model: str | None


def save(conversation: Conversation, path: str) -> Path:
    """Write the conversation; a file that holds none is not overwritten. Returns where it is.

    Raises:
        UsageError: there is no such folder, no permission, something else in the file, or nothing to save.
    """
    content = document(conversation)
    if not content["messages"]:  # /load would refuse it, and what was saved there before is worth more
        raise UsageError("there is nothing to save: nothing was said yet", hint="Ask something first.")
    where = Path(os.path.realpath(_place(path)))  # a link stays one
    if where.exists() and not _is_ours(where):
        raise UsageError(
            f"'{path}' exists and is no conversation", hint="Take another name, or remove it first."
        )
    text = json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    new = where.with_name(f".{where.name}.{os.getpid()}")
    try:
        # A conversation may be private. Written beside it and then moved: a full disk leaves the old one whole.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode(errors="replace"))
        new.replace(where)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(
            f"can't write '{path}': {error.strerror}", hint="Check the folder and its permissions."
        ) from None
    return where


def document(conversation: Conversation) -> dict[str, Any]:
    """What is saved: messages with the system message first, and the settings that are not the model's own."""
    checkpoint = conversation.generator.checkpoint
    resolved = conversation.resolved
    settings = {
        name: value
        for name, value in resolved.request_settings().items()
        if resolved.sources[name] not in _OWN
    }
    messages = list(conversation.messages)
    if conversation.system is not None:
        messages.insert(0, {"role": "system", "content": conversation.system})
    if conversation.unanswered is not None:
        messages.append({"role": "user", "content": conversation.unanswered})
    return {
        _MARK: VERSION,
        "model": checkpoint.name,
        "revision": checkpoint.revision,
        "dgen_version": __version__,
        "settings": settings,
        "messages": messages,
    }


def read(path: str) -> Saved:
    """Read a conversation; any JSON object with `messages` will do.

    Raises:
        UsageError, SettingsError: the file can't be read, or holds what can't be said, or nothing.
    """
    data = _read(path)
    if data.get(_MARK, VERSION) != VERSION:
        raise UsageError(
            f"'{path}' is a conversation of version {data[_MARK]}", hint="A newer dgen may read it."
        )
    system, messages = _messages(data.get("messages"), path)
    settings = data.get("settings")
    if not isinstance(settings, Mapping | None):
        raise UsageError(f"the settings in '{path}' are no object", hint='Write {"steps": 24}, for example.')
    changes = Layer(f"file {path}", dict(settings)) if settings else None
    if changes is not None:
        check_changeable(changes)
        resolve([changes], partial=True)
    asks = bool(messages) and messages[-1]["role"] == "user"
    unanswered = messages.pop()["content"] if asks else None
    model = data.get("model")
    return Saved(
        path, system, tuple(messages), unanswered, changes, model if isinstance(model, str) else None
    )


def load(conversation: Conversation, saved: Saved) -> None:
    """Put a saved conversation in the place of this one; an error leaves it as it was.

    Raises:
        SettingsError: its settings contradict the model's own.
    """
    if saved.changes is not None:
        conversation.generator.resolve(saved.changes)
    conversation.clear()
    conversation.messages, conversation.system = [dict(message) for message in saved.messages], saved.system
    conversation.unanswered, conversation.changes = saved.unanswered, []
    if saved.changes is not None:
        conversation.change(saved.changes)


def _messages(messages: Any, path: str) -> tuple[str | None, list[Message]]:
    if not isinstance(messages, list):
        raise UsageError(f"'{path}' has no messages", hint=_TAKES)
    if not messages:
        raise UsageError(f"the messages in '{path}' are empty: there is nothing to go on with", hint=_TAKES)
    # Only a question can be answered, but a conversation may end in an answer.
    checked = check_messages([*messages, {"role": "user", "content": "-"}])[:-1]
    plain = [{"role": message["role"], "content": message["content"]} for message in checked]
    system = None
    if plain[0]["role"] in ("system", "developer"):
        system = plain.pop(0)["content"]
    return system, plain


def _read(path: str) -> dict[str, Any]:
    try:
        data = json.loads(_place(path).read_bytes())
    except OSError as error:
        raise UsageError(f"can't read '{path}': {error.strerror}", hint="Check the path.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"'{path}' is no JSON", hint=_TAKES) from None
    if not isinstance(data, dict):
        raise UsageError(f"'{path}' is no JSON object", hint=_TAKES)
    return data


def _is_ours(where: Path) -> bool:
    if not where.is_file():
        return False
    try:
        data = json.loads(where.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and _MARK in data


def _place(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"'{path}' names no home folder", hint="Write the whole path.") from None
