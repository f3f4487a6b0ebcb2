"""--draft, --slow and --trace as a person or a pipeline meets them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from jsonschema import Draft202012Validator
from terminal import Terminal

from dgen.output.trace_reader import read_trace
from dgen.output.trace_schema import trace_schema

RUN = ("--prompt", "a cat", "--max-tokens", 20, "--seed", 4)


def test_a_trace_is_written_beside_the_same_answer(dgen, checkpoint, tmp_path):
    plain = dgen("generate", "-m", checkpoint, *RUN).out
    path = tmp_path / "t.jsonl"
    done = dgen("generate", "-m", checkpoint, *RUN, "--trace", path, "--logprobs", 3)
    assert (done.code, done.out) == (0, plain)
    assert "Warning" not in done.err, "the log-probabilities asked for are in the trace"
    validator = Draft202012Validator(trace_schema())
    for line in path.read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(line))


def test_a_trace_tells_what_the_completion_tells(dgen, checkpoint, tmp_path):
    path = tmp_path / "t.jsonl"
    done = dgen("generate", "-m", checkpoint, *RUN, "--trace", path, "--format", "json", "--logprobs", 3)
    completion, trace = json.loads(done.out), read_trace(str(path))
    usage = completion["usage"]
    assert [len(canvas.steps) for canvas in trace.canvases] == usage["steps_per_canvas"]
    assert [canvas.converged.converged_by for canvas in trace.canvases] == usage["converged_by"]
    assert [t.token_id for t in trace.tokens] == [entry["token_id"] for entry in completion["logprobs"]]
    assert trace.header["id"] == completion["id"]
    assert trace.header["settings"] == completion["settings"]
    for token, entry in zip(trace.tokens, completion["logprobs"], strict=True):
        assert [token_id for token_id, _ in token.top] == [top["token_id"] for top in entry["top_logprobs"]]
        assert token.entropy == pytest.approx(entry["entropy"], abs=1e-4)


@pytest.mark.parametrize("name", ["no/such/folder/t.jsonl", ".", "-", "", "t.jsonl.gz"])
def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_loaded(
    dgen, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    done = dgen("generate", "-m", tmp_path / "no-model", *RUN, "--trace", name)
    assert (done.code, done.out) == (2, "")
    assert "trace" in done.err.splitlines()[0]


def test_a_run_that_never_began_leaves_an_older_trace_and_makes_no_new_one(dgen, tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text('{"type":"header","trace":1}\n')
    for path in (old, new):
        assert dgen("generate", "-m", tmp_path / "no-model", *RUN, "--trace", path).code == 3
    assert old.read_text() == '{"type":"header","trace":1}\n'
    assert not new.exists()


def test_a_shorter_trace_replaces_a_longer_one_whole(dgen, checkpoint, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("x" * 1_000_000)
    refused = dgen("generate", "-m", checkpoint, *RUN, "--trace", path)
    assert refused.code == 2
    assert "exists and is no trace" in refused.err
    path.write_text('{"type":"header","trace":1}' + "x" * 1_000_000)
    assert dgen("generate", "-m", checkpoint, *RUN, "--trace", path).code == 0
    assert read_trace(str(path)).end is not None


def test_a_full_disk_costs_the_trace_and_not_the_answer(dgen, checkpoint):
    plain = dgen("generate", "-m", checkpoint, *RUN).out
    done = dgen("generate", "-m", checkpoint, *RUN, "--trace", "/dev/full")
    assert (done.code, done.out) == (1, plain)
    assert "the trace '/dev/full' is incomplete: No space left on device" in done.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--draft", "maybe"], "--draft must be one of auto, on, off, not 'maybe'"),
        (["--slow", "fast"], "--slow must be a number of seconds"),
        (["--slow", "-1"], "--slow must be a number of seconds"),
        (["--slow", "nan"], "--slow must be a number of seconds"),
        (["--draft", "off", "--slow", "1"], "--slow holds the canvas"),
    ],
)
def test_bad_values_are_refused(dgen, checkpoint, argv, says):
    done = dgen("generate", "-m", checkpoint, *RUN, *argv)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_without_a_terminal_there_is_no_canvas_unless_asked_for(dgen, checkpoint):
    plain = dgen("generate", "-m", checkpoint, *RUN)
    assert "canvas 1, step" not in plain.err
    done = dgen("generate", "-m", checkpoint, *RUN, "--draft", "on", "--slow", "0.001", "-q")
    assert done.out == plain.out, "a draft never reaches stdout"
    assert "[canvas 1, step 1/" in done.err
    assert "\x1b" not in done.err
    warned = dgen("generate", "-m", checkpoint, *RUN, "--slow", "0.001")
    assert "--slow has no effect" in warned.err


class Session:
    """A command that owns a terminal."""

    def __init__(self, checkpoint, *argv: str, columns: int = 60, rows: int = 12, **environment: str) -> None:
        self.reader, writer = pty.openpty()
        os.set_blocking(self.reader, True)
        import fcntl
        import struct
        import termios

        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-m", "dgen", "generate", "-m", str(checkpoint), *map(str, RUN), *argv]
        self.process = subprocess.Popen(
            command,
            stdin=writer,
            stdout=writer,
            stderr=writer,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "DGEN_DEVICE": "cpu",
                "TERM": "xterm-256color",
                **environment,
            },
        )
        os.close(writer)
        self.seen = b""

    def read(self, until: bytes | None = None, seconds: float = 60.0) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end and (until is None or until not in self.seen):
            try:
                chunk = os.read(self.reader, 65536)
            except OSError:  # how Linux says that the last writer is gone
                break
            if not chunk:
                break
            self.seen += chunk
        return self.seen.decode()

    def ended(self) -> int:
        self.read()
        os.close(self.reader)
        return self.process.wait(timeout=60)


def canvas_part(seen: str) -> str:
    """What was written from the first frame on; before, rich shows the loading."""
    return seen[seen.index("\x1b[?2026h") :]


def test_on_a_terminal_the_canvas_is_shown_and_only_the_text_remains(dgen, checkpoint):
    answer = dgen("generate", "-m", checkpoint, *RUN).out
    session = Session(checkpoint, "--slow", "0.01")
    assert session.ended() == 0
    seen = canvas_part(session.seen.decode())
    assert "canvas 1, step 1/" in seen
    assert "\x1b[32m" in seen
    terminal = Terminal(60, 12)
    terminal.feed(seen.replace("\r\n", "\n"))
    text = "\n".join(terminal.lines())
    assert "accepted" not in text
    assert "".join(answer.split()) in "".join(text.split())
    assert terminal.wraps


@pytest.mark.parametrize("argv", [["--draft", "off"], ["-q"]], ids=" ".join)
def test_off_and_quiet_show_no_canvas(checkpoint, argv):
    session = Session(checkpoint, *argv)
    assert session.ended() == 0
    assert b"\x1b[?2026h" not in session.seen


def test_ctrl_c_ends_a_held_step_and_leaves_terminal_and_trace_in_order(checkpoint, tmp_path):
    path = tmp_path / "t.jsonl"
    session = Session(checkpoint, "--slow", "30", "--trace", str(path))
    session.read(until=b"canvas 1, step 1/")
    began = time.monotonic()
    session.process.send_signal(signal.SIGINT)
    assert session.ended() == 130
    assert time.monotonic() - began < 20
    terminal = Terminal(60, 12)
    terminal.feed(canvas_part(session.seen.decode()).replace("\r\n", "\n"))
    assert [line for line in terminal.lines() if "accepted" in line] == []
    assert terminal.wraps
    assert read_trace(str(path)).end["finish_reason"] == "interrupted"
