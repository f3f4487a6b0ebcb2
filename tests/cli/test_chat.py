"""dgen chat: piped, and at a terminal that types, cancels and quits."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from dgen.cli.lines import read_message
from dgen.cli.talk import Talk

SLOW = [
    "--max-tokens",
    "400",
    "--steps",
    "400",
    "--confidence",
    "0",
    "--set",
    "entropy_bound=0",
    "--seed",
    "1",
]


class Script:
    """Lines as if typed; an exception among them is raised."""

    def __init__(self, *lines):
        self.lines, self.prompts = list(lines), []

    def read(self, prompt):
        self.prompts.append(prompt)
        return self.lines.pop(0) if self.lines else None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a cat"], "a cat"),
        ([""], ""),
        (["a \\", "cat\\", "", "no"], "a \ncat\n"),
        (["a\\"], "a"),
        (['"""a', " cat", 'sat"""', "no"], "a\n cat\nsat"),
        (['"""', "a\\", '"b"', '"""  ', "no"], 'a\\\n"b"'),
        (['"""a cat"""'], "a cat"),
        (['"""a', "cat"], "a\ncat"),
        (['say """a"""'], 'say """a"""'),
        ([], None),
    ],
)
def test_messages_of_several_lines(lines, message):
    script = Script(*lines)
    assert read_message(script) == message
    assert script.prompts[0] == "> "
    assert set(script.prompts[1:]) <= {". "}
    assert script.lines in ([], ["no"])


@pytest.fixture
def say(dgen, checkpoint, tmp_path, monkeypatch):
    """Run a chat in this process, in a folder of its own, with these lines as stdin."""
    monkeypatch.chdir(tmp_path)

    def call(lines, *argv):
        (tmp_path / "stdin").write_bytes(
            "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        )
        file = os.open(tmp_path / "stdin", os.O_RDONLY)
        os.dup2(file, 0)
        os.close(file)
        return dgen("chat", "-q", "-m", checkpoint, "--max-tokens", 8, *argv)

    return call


def test_each_piped_line_is_a_turn_that_knows_the_ones_before(say, dgen, checkpoint):
    done = say(["a cat", "", "is it red?"], "--seed", 1, "--format", "json")
    first, second = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, done.err) == (0, "")
    assert (first["seed"], second["seed"]) == (1, 2)
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + 8
    alone = dgen("generate", "-q", "-m", checkpoint, "--max-tokens", 8, "--seed", 1, "--prompt", "a cat")
    assert alone.out == first["text"] + "\n"
    again = say(["a cat", "is it red?"], "--seed", 1)
    assert again.out == f"{first['text']}\n{second['text']}\n"


def test_an_error_is_a_line_and_a_hint_and_the_next_turn_comes(say):
    wrong = ["/nope", "/set steps=x", "/save", "/load nothing", "/retry", "\udcff", "a cat " * 300]
    done = say([*wrong, "//a"])
    lines = done.err.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["Error:", "Hint:"] * len(wrong)
    assert "line 6 of stdin is not UTF-8" in done.err
    assert "the context has 512" in done.err
    assert "the conversation is full" not in done.err, "there is none yet"
    assert len(done.out.splitlines()) >= 1
    assert done.code == 1


def test_a_conversation_is_saved_and_goes_on_in_another_run(say, tmp_path):
    both = say(["a cat", "is it red?"], "--seed", 1, "--format", "json").out.splitlines()
    assert say(["a cat", "/save talk.json"], "--seed", 1).code == 0
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]
    done = say(["/set seed=2", "is it red?"], "--load", "talk.json", "--format", "json")
    assert json.loads(done.out)["text"] == json.loads(both[-1])["text"]
    assert "seed = 2 (/set)" in done.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't read 'talk.json'"),
        ("[]", "'talk.json' is no JSON object"),
        ('{"messages": []}', "the messages in 'talk.json' are empty"),
        ('{"messages": [{"role": "cat", "content": "x"}]}', "the role cat"),
        ('{"messages": [{"role": "user", "content": "x"}], "settings": {"steps": 0}}', "steps must be"),
        ('{"messages": [{"role": "user", "content": "x"}], "settings": {"model": "x"}}', "model belongs to"),
    ],
)
def test_a_file_that_cannot_be_gone_on_with_is_refused_before_a_model_is_loaded(
    say, tmp_path, monkeypatch, content, says
):
    monkeypatch.setattr("dgen.generator.from_layers", lambda *args, **options: pytest.fail("loaded"))
    if content is not None:
        (tmp_path / "talk.json").write_text(content)
    done = say(["a cat"], "--load", "talk.json")
    assert done.code == 2
    assert says in done.err
    assert "Hint:" in done.err
    assert done.out == ""


def test_loading_a_file_without_messages_keeps_the_talk(say, tmp_path):
    (tmp_path / "empty.json").write_text('{"messages": []}')
    done = say(["a cat", "/load empty.json", "/save talk.json"], "--seed", 1)
    assert "the messages in 'empty.json' are empty" in done.err
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]


def test_loading_a_system_message_alone_says_so(say, tmp_path):
    (tmp_path / "who.json").write_text('{"messages": [{"role": "system", "content": "be kind"}]}')
    done = say(["/load who.json", "/system"])
    assert "loaded the system message from who.json; nothing else was said in it" in done.err
    assert "system: be kind" in done.err


def test_what_commands_say_goes_to_stderr(say):
    done = say(["/help", "/set", "/system be kind", "/stats", "/exit", "a cat"])
    assert (done.code, done.out) == (0, "")
    for said in ("/retry", "steps = 48 (checkpoint)", "system: be kind", "context: 0 of 512 positions used"):
        assert said in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_piped_chat(checkpoint, number, code):
    process = subprocess.Popen(
        [sys.executable, "-m", "dgen", "chat", "-m", str(checkpoint), "--format", "jsonl", *SLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DGEN_DEVICE": "cpu"},
    )
    process.stdin.write("a cat\nred\n")
    process.stdin.flush()
    first = process.stdout.readline()  # a canvas has converged: a turn is running
    process.send_signal(number)
    out, err = process.stdout.read(), process.stderr.read()
    assert process.wait(timeout=60) == code, err
    last = json.loads((first + out).splitlines()[-1])
    assert last["finish_reason"] == "interrupted"
    assert "Traceback" not in err


class Typist:
    """A chat on a terminal of its own."""

    def __init__(self, checkpoint, *options, term="xterm-256color", folder=None):
        self.keys, writer = pty.openpty()
        self.seen = ""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DGEN_DEVICE": "cpu",
            "TERM": term,
            "XDG_STATE_HOME": str(folder),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dgen", "chat", "-m", str(checkpoint), *options],
            stdin=writer,
            stdout=writer,
            stderr=writer,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: _own_terminal(),
        )
        os.close(writer)

    def wait_for(self, text, *, seconds=60.0):
        """All that was written since the last call, up to and with the text."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < until, f"no {text!r} in {self.seen!r}"
            if select.select([self.keys], [], [], 0.1)[0]:
                self._read()
        head, _, self.seen = self.seen.partition(text)
        return head + text

    def _read(self):
        try:
            data = os.read(self.keys, 65536)
        except OSError:  # how Linux says that the last writer is gone
            data = b""
        assert data, f"ended after {self.seen!r}"
        self.seen += data.decode(errors="replace")

    def type(self, text):
        os.write(self.keys, text.encode())

    def press(self, key):
        """Ctrl-C or Ctrl-D, once the prompt waits: Python misses a signal that comes just before it does."""
        self.wait_a_moment()
        self.type(key)

    def wait_a_moment(self):
        """Go on reading for a moment."""
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            if select.select([self.keys], [], [], 0.1)[0]:
                self._read()

    def ends(self):
        """The exit code; what is still written is read, for a terminal that nobody reads may hold its writer up."""
        until = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < until, f"does not end after {self.seen!r}"
            if select.select([self.keys], [], [], 0.1)[0]:
                with contextlib.suppress(AssertionError):
                    self._read()
        return self.process.returncode

    @property
    def echoes(self):
        return bool(termios.tcgetattr(self.keys)[3] & termios.ECHO)


def _own_terminal():
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def typist(checkpoint, tmp_path):
    typists = []

    def start(*options, **kwargs):
        typists.append(Typist(checkpoint, *options, folder=tmp_path, **kwargs))
        return typists[-1]

    yield start
    for one in typists:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_ctrl_c_cancels_the_turn_and_once_more_quits(typist):
    chat = typist(*SLOW)
    chat.wait_for("> ")
    chat.type("a cat\r")
    chat.wait_for("accepted")
    assert not chat.echoes  # keys pressed now would move the canvas
    chat.press("\x03")
    chat.wait_for("cancelled")
    chat.wait_for("> ")
    chat.type("/set steps=2\r")
    chat.wait_for("steps = 2")
    chat.type("/set max_tokens=8\r")
    chat.wait_for("max_tokens = 8")
    chat.wait_for("> ")
    chat.type("/retry\r")
    chat.wait_for("tokens/s · seed")
    chat.wait_for("> ")
    chat.press("\x03")
    chat.wait_for("again quits")
    chat.wait_for("> ")
    chat.type("half a line")
    chat.wait_for("half a line")
    chat.press("\x03")  # drops the line, and is none of two in a row
    chat.wait_for("> ")
    chat.press("\x03")
    chat.wait_for("again quits")
    chat.wait_for("> ")
    chat.press("\x03")
    assert chat.ends() == 130


def test_a_second_ctrl_c_gives_the_turn_up_at_once_and_the_chat_goes_on(typist, monkeypatch):
    chat = typist(*SLOW)
    chat.wait_for("> ")
    chat.type("a cat\r")
    chat.wait_for("accepted")
    chat.press("\x03\x03")
    chat.wait_for("cancelled")
    chat.wait_for("> ")
    chat.type("/set steps=2\r/set max_tokens=8\r/retry\r")
    chat.wait_for("tokens/s · seed")
    chat.wait_for("> ")
    chat.press("\x04")
    assert chat.ends() == 0


def test_what_is_typed_early_is_read_and_remembered(typist, tmp_path):
    chat = typist("--max-tokens", "8")
    chat.type("a cat\r/stats\r")
    seen = chat.wait_for("context:")
    assert "tokens/s · seed" in seen
    chat.wait_for("> ")
    chat.type("/ex\t\r")
    assert chat.ends() == 0
    assert (tmp_path / "dgen" / "chat_history").read_text() == "a cat\n/stats\n/exit \n"
    again = typist("--no-history", "-q")
    again.wait_for("> ")
    again.type("\x1b[A\r")  # the line before: there is none
    again.type("/exit\r")
    assert again.ends() == 0
    assert (tmp_path / "dgen" / "chat_history").read_text() == "a cat\n/stats\n/exit \n"


def test_a_pasted_text_is_one_message(typist):
    chat = typist("--max-tokens", "8")
    chat.wait_for("> ")
    chat.type("\x1b[200~a cat\nsat\x1b[201~\r")
    chat.wait_for("tokens/s · seed")
    chat.wait_for("> ")
    chat.type("/stats\r")
    assert "1 turn" in chat.wait_for("context:")
    chat.wait_for("> ")
    chat.press("\x04")
    assert chat.ends() == 0


def test_a_dumb_terminal_gets_no_control_sequences(typist):
    chat = typist("--max-tokens", "8", term="dumb")
    seen = chat.wait_for("> ")
    chat.type("a cat\r")
    seen += chat.wait_for("tokens/s · seed")
    seen += chat.wait_for("> ")
    chat.press("\x04")
    assert chat.ends() == 0
    assert not re.search(r"\x1b", seen)


def test_a_kill_at_the_prompt_leaves_the_terminal_in_order(typist):
    chat = typist()
    chat.wait_for("> ")
    chat.wait_a_moment()
    assert not chat.echoes  # readline echoes by itself
    chat.process.send_signal(signal.SIGTERM)
    assert chat.ends() == 143
    assert chat.echoes
    os.close(chat.keys)


def test_a_failure_that_nobody_foresaw_does_not_end_the_chat(checkpoint, monkeypatch):
    import dgen
    from dgen.cli.sink import Sink

    model = dgen.load(checkpoint, device="cpu", slots=2, max_tokens=8, steps=2)
    model.engine.hold_prefix()
    said = []

    class Said(Sink):
        def error(self, error):
            said.append(error)

    def broken(*_):
        raise RuntimeError("no kernel image\nis available")

    denoise = model.denoiser.denoise
    monkeypatch.setattr(model.denoiser, "denoise", broken)

    class Watchless:
        shows_canvas = False

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def begin(self, *_, **__):
            pass

        def see(self, item):
            pass

    script = Script("a cat", "a cat")
    talk = Talk(model, script, Said(sys.stdout, None), Said(None, None), watch=Watchless)
    read = script.read

    def mend(prompt):
        if len(script.lines) == 1:
            monkeypatch.setattr(model.denoiser, "denoise", denoise)
        return read(prompt)

    script.read = mend
    assert talk.run() == 1
    assert [error.message for error in said] == ["unexpected RuntimeError: no kernel image"]
    assert len(talk._conversation.messages) == 2
