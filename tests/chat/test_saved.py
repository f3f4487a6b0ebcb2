"""A conversation in a file: all of it comes back, files of others are left alone, and no broken one is taken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiny import tiny_checkpoint

import dgen
from dgen.chat.conversation import Conversation
from dgen.chat.saved import load, read, save
from dgen.errors import DgenError, UsageError
from dgen.settings import Layer

MESSAGES = [
    {"role": "user", "content": "a cat\nsat 🦊"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "yes"},
    {"role": "assistant", "content": "no \\ \u2028"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("saved") / "tiny", seed=0, canvas_length=8)
    return dgen.load(folder, device="cpu", max_tokens=8, steps=4)


@pytest.fixture
def talk(model):
    return Conversation(model, system="we are", messages=[dict(message) for message in MESSAGES])


def test_what_was_saved_is_loaded(talk, model, tmp_path):
    talk.change(Layer("/set", {"steps": "7", "stop": "the"}))
    talk.change(Layer("/set", {"greedy": "true"}))
    talk.unanswered = "and?"
    save(talk, str(tmp_path / "talk.json"))
    other = Conversation(model)
    saved = read(str(tmp_path / "talk.json"))
    assert saved.model == str(model.checkpoint.name)
    load(other, saved)
    assert (other.messages, other.system, other.unanswered) == (MESSAGES, "we are", "and?")
    assert other.resolved.settings == talk.resolved.settings
    assert other.retry().job.request.prompt_ids == talk.retry().job.request.prompt_ids
    save(other, str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "talk.json").read_bytes()


def test_a_seed_in_the_file_begins_anew(talk, model, tmp_path):
    talk.change(Layer("/set", {"seed": "5"}))
    path = str(save(talk, str(tmp_path / "talk.json")))
    other, fresh = (Conversation(model) for _ in range(2))
    for turn in (other.ask("red"), other.ask("fox")):
        list(other.run(turn))
    load(other, read(path))
    load(fresh, read(path))
    assert other.ask("and?").job.request.seed == fresh.ask("and?").job.request.seed == 5


def test_a_file_holds_what_was_set_and_not_the_models_own_settings(talk, tmp_path):
    path = save(talk, str(tmp_path / "talk.json"))
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["settings"] == {"max_tokens": 8, "steps": 4}
    assert data["messages"] == [{"role": "system", "content": "we are"}, *MESSAGES]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_conversation_is_overwritten_and_nothing_else_is(talk, tmp_path):
    path = tmp_path / "talk.json"
    save(talk, str(path))
    talk.clear()
    save(talk, str(path))
    assert json.loads(path.read_text())["messages"] == [{"role": "system", "content": "we are"}]
    (tmp_path / "link.json").symlink_to(path)
    save(talk, str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    for name, content in {"notes": b"mine", "other.json": b'{"messages": []}'}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="is no conversation"):
            save(talk, str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == content
    for place in (tmp_path, "/dev/null"):
        with pytest.raises(UsageError, match="is no conversation"):
            save(talk, str(place))
    with pytest.raises(UsageError, match="No such file"):
        save(talk, str(tmp_path / "nowhere" / "talk.json"))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "link.json",
        "notes",
        "other.json",
        "talk.json",
    ]


def test_messages_that_another_tool_wrote_will_do(talk, tmp_path):
    path = tmp_path / "other.json"
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}]
    messages = [
        {"role": "developer", "content": "short"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "hat", "reasoning": "hm"},
    ]
    path.write_text(json.dumps({"messages": messages}))
    assert read(str(path)).model is None
    load(talk, read(str(path)))
    assert talk.system == "short"
    assert talk.messages == [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "hat"}]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[1]",
        b"{}",
        b'{"messages": "x"}',
        b'{"messages": []}',
        b'{"messages": [1]}',
        b'{"messages": [{"role": "cat", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": ""}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "settings": 3}',
        b'{"messages": [{"role": "user", "content": "x"}], "settings": {"stepz": 3}}',
        b'{"messages": [{"role": "user", "content": "x"}], "settings": {"steps": {}}}',
        b'{"messages": [{"role": "user", "content": "x"}], "settings": {"model": "x"}}',
        b'{"messages": [{"role": "user", "content": "x"}], "settings": {"seed": [1]}}',
        b'{"dgen_chat": 2, "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": ' + b"[" * 100_000,
    ],
    ids=lambda content: content[-40:].decode("latin-1"),
)
def test_a_file_that_holds_no_conversation_changes_nothing(talk, tmp_path, content):
    (tmp_path / "broken").write_bytes(content)
    talk.change(Layer("/set", {"steps": "5"}))
    with pytest.raises(DgenError) as caught:
        load(talk, read(str(tmp_path / "broken")))
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert (talk.messages, talk.system) == (MESSAGES, "we are")
    assert talk.resolved.settings.steps == 5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1]", "no JSON object"),
        (b"{}", "has no messages"),
        (b'{"messages": []}', "messages in .* are empty"),
    ],
)
def test_what_a_file_must_hold_is_said_as_the_docs_say_it(tmp_path, content, reason):
    (tmp_path / "talk.json").write_bytes(content)
    with pytest.raises(UsageError, match=reason) as caught:
        read(str(tmp_path / "talk.json"))
    assert 'a JSON object with "messages"' in caught.value.hint


def test_a_conversation_in_which_nothing_was_said_takes_no_files_place(talk, tmp_path):
    path = tmp_path / "talk.json"
    before = save(talk, str(path)).read_bytes()
    talk.clear()
    talk.system = None
    with pytest.raises(UsageError, match="nothing to save"):
        save(talk, str(path))
    assert path.read_bytes() == before


def test_a_system_message_alone_is_saved_and_loaded(talk, tmp_path):
    talk.clear()
    saved = read(str(save(talk, str(tmp_path / "talk.json"))))
    assert (saved.system, saved.messages, saved.unanswered) == ("we are", (), None)


def test_reading_a_file_needs_no_torch():
    code = "import sys, dgen.chat.saved; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "content", [b"", b"{}\n{}", b"\xff", b"[" * 100_000], ids=lambda data: repr(data)[:12]
)
def test_a_file_that_is_no_json_is_refused_in_plain_words(tmp_path, content):
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"talk.json' is no JSON$"):
        read(str(path))
