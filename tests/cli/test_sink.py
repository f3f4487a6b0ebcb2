"""What is written where, on terminals, pipes, full disks and closed descriptors."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from dgen.cli.sink import Sink, escaped, wants_color
from dgen.engine.events import Emitted
from dgen.errors import DgenError, OutputError
from dgen.output.text import Piece


class Bytes:
    """A vocabulary of 256 bytes."""

    channel_start = channel_end = None

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id])

    def token(self, token_id: int) -> str:
        return f"<0x{token_id:02X}>"

    def is_special(self, token_id: int) -> bool:
        return False


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def answer(text: str, *tokens: int) -> Piece:
    return Piece(text, "answer", tuple(Emitted(token, at, 0, 1, 0.5, 0.0) for at, token in enumerate(tokens)))


def thought(text: str) -> Piece:
    return Piece(text, "reasoning", ())


def record(**changes: Any) -> dict[str, Any]:
    return {"type": "completion", "finish_reason": "eos", "logprobs": [{"rank": 1}], **changes}


def piped(**options: Any) -> tuple[Sink, io.StringIO, io.StringIO]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return Sink(stdout, stderr, **options), stdout, stderr


# Text


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (["a", "b"], "ab\n"),
        (["a\n"], "a\n"),
        (["a", "\n"], "a\n"),
        ([], "\n"),
        (["", ""], "\n"),
        (["\na"], "\na\n"),
    ],
)
def test_text_ends_in_the_newline_it_has_or_one_more(texts: list[str], written: str) -> None:
    sink, stdout, stderr = piped()
    for text in texts:
        sink.piece(answer(text))
    sink.completion(record())
    sink.close()
    assert (stdout.getvalue(), stderr.getvalue()) == (written, "")


@pytest.mark.parametrize("reason", ["error", "interrupted"])
def test_request_that_ended_before_its_text_leaves_stdout_empty(reason: str) -> None:
    sink, stdout, _ = piped()
    sink.completion(record(finish_reason=reason))
    sink.close()
    assert stdout.getvalue() == ""


def test_close_ends_the_line_of_an_interrupted_answer() -> None:
    sink, stdout, _ = piped()
    sink.piece(answer("part"))
    sink.close()
    sink.close()
    assert stdout.getvalue() == "part\n"


def test_reasoning_goes_to_stderr_and_is_left_out_when_quiet() -> None:
    sink, stdout, stderr = piped()
    sink.piece(thought("hm"))
    sink.piece(thought("m"))
    sink.piece(answer("Yes"))
    sink.completion(record())
    assert (stdout.getvalue(), stderr.getvalue()) == ("Yes\n", "hmm\n")
    sink, stdout, stderr = piped(quiet=True)
    sink.piece(thought("hm"))
    sink.piece(answer("Yes"))
    assert (stdout.getvalue(), stderr.getvalue()) == ("Yes", "")


def test_text_is_written_as_it_comes() -> None:
    class Counting(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    stdout = Counting()
    sink = Sink(stdout, io.StringIO())
    sink.piece(answer("a"))
    assert stdout.flushed == "a"
    sink.piece(answer("b"))
    assert stdout.flushed == "ab"


def test_piped_text_is_untouched_and_a_terminals_control_characters_are_visible() -> None:
    wild = "a\x1b[2J\r\x07\x9b1m\tb\n"
    sink, stdout, _ = piped()
    sink.piece(answer(wild))
    assert stdout.getvalue() == wild
    screen = Screen()
    Sink(screen, io.StringIO()).piece(answer(wild))
    assert screen.getvalue() == "a\\x1b[2J\\x0d\\x07\\x9b1m\tb\n"


def test_stderr_never_carries_foreign_control_characters() -> None:
    for stderr in (io.StringIO(), Screen()):
        sink = Sink(io.StringIO(), stderr, color=False)
        sink.piece(thought("a\x1b[2J"))
        sink.note("b\x1b[2J\nc")
        sink.warn("d\x07")
        sink.error(DgenError("no 'e\x1b\udcff'", hint="f\x9b"))
        assert stderr.getvalue() == (
            "a\\x1b[2J\nb\\x1b[2J\\nc\nWarning: d\\x07\nError: no 'e\\x1b\ufffd'\nHint: f\\x9b\n"
        )


def test_lines_do_not_run_into_each_other_on_one_screen() -> None:
    screen = Screen()
    sink = Sink(screen, screen)
    sink.piece(answer("Once"))
    sink.note("slow")
    sink.note("still")
    sink.piece(answer(" upon"))
    sink.piece(thought("hm"))
    sink.piece(answer("a time"))
    sink.error(DgenError("over"))
    sink.close()
    assert screen.getvalue() == "Once\nslow\nstill\n upon\nhm\na time\nError: over\n"


# Notes


def test_quiet_leaves_errors_alone_and_verbose_adds_details() -> None:
    said = {}
    for name, options in {
        "quiet": {"quiet": True, "verbose": True},
        "plain": {},
        "verbose": {"verbose": True},
    }.items():
        sink, stdout, stderr = piped(**options)
        sink.note("note")
        sink.detail("detail")
        sink.warn("careful")
        sink.error(OutputError("broken", hint="mend it"))
        said[name] = stderr.getvalue()
        assert stdout.getvalue() == ""
    error = "Error: broken\nHint: mend it\n"
    assert said == {
        "quiet": error,
        "plain": f"note\nWarning: careful\n{error}",
        "verbose": f"note\ndetail\nWarning: careful\n{error}",
    }


def test_color_is_for_terminals_alone() -> None:
    sink, _, stderr = piped(color=True)
    sink.note("note")
    assert stderr.getvalue() == "note\n"
    screen = Screen()
    Sink(io.StringIO(), screen, color=True).note("note")
    assert screen.getvalue() == "\x1b[2mnote\x1b[0m\n"


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (Screen(), {"TERM": "xterm"}, True),
        (Screen(), {}, True),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (None, {"TERM": "xterm"}, False),
    ],
)
def test_color_honours_the_environment(stream: Any, environ: dict[str, str], wanted: bool) -> None:
    assert wants_color(stream, environ=environ) is wanted


def test_escapes_show_what_would_drive_a_terminal() -> None:
    assert escaped("é\t\n😀") == "é\t\n😀"
    assert escaped("\x00\x7f\x85") == "\\x00\\x7f\\x85"


# JSON


def test_jsonl_writes_a_line_a_token_and_a_closing_completion() -> None:
    sink, stdout, stderr = piped(format="jsonl")
    sink.begin(vocabulary=Bytes(), request_id="q", index=4, logprobs_of="raw")
    sink.piece(answer("ab", 97, 98))
    sink.piece(Piece("", "reasoning", (Emitted(0, 2, 0, 1, 0.5, 0.0, logprob=-1.0, rank=2),)))
    sink.piece(answer("late"))
    sink.completion(record())
    sink.close()
    lines = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["token", "token", "token", "completion"]
    assert [(line["id"], line["index"], line["bytes"]) for line in lines[:3]] == [
        ("q", 4, [97]),
        ("q", 4, [98]),
        ("q", 4, [0]),
    ]
    assert [line["channel"] for line in lines[:3]] == ["answer", "answer", "reasoning"]
    assert [line["logprobs_of"] for line in lines[:3]] == [None, None, "raw"]
    assert lines[3]["logprobs"] is None
    assert stderr.getvalue() == ""


def test_json_writes_the_completion_alone() -> None:
    sink, stdout, stderr = piped(format="json")
    sink.piece(answer("ab", 97, 98))
    sink.piece(thought("hm"))
    sink.completion(record())
    sink.close()
    assert json.loads(stdout.getvalue()) == record()
    assert stdout.getvalue().count("\n") == 1
    assert stderr.getvalue() == ""
    assert not sink.is_text


def test_document_is_written_whole() -> None:
    sink, stdout, _ = piped(quiet=True)
    sink.document('{\n  "a": 1\n}')
    sink.close()
    assert stdout.getvalue() == '{\n  "a": 1\n}\n'
