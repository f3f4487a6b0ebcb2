"""The program in a real shell: pipes that close, disks that are full, streams that are not there, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

RUN = '$DGEN generate -q -m "$MODEL" --max-tokens 16 --seed 1'


def test_a_reader_that_leaves_ends_it_quietly(shell):
    done = shell(f"set -o pipefail; {RUN} --prompt 'a cat' --format jsonl | head -c 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_a_full_disk_is_said_once(shell):
    for form in ("text", "json", "jsonl"):
        done = shell(f"{RUN} --prompt 'a cat' --format {form} > /dev/full")
        assert done.returncode == 1
        assert done.stderr.count("Error:") == 1
        assert "No space left" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_stderr_the_answer_still_comes(shell):
    plain = shell(f"{RUN} --prompt 'a cat'")
    assert plain.returncode == 0
    assert plain.stdout
    assert shell(f"{RUN.replace('-q', '-v')} --prompt 'a cat' 2>&-").stdout == plain.stdout


def test_without_stdout_it_says_so(shell):
    done = shell(f"{RUN} --prompt 'a cat' >&-")
    assert done.returncode == 1
    assert "standard output is closed" in done.stderr


def test_a_closed_stdin_matters_only_when_it_is_the_prompt(shell):
    assert shell(f"{RUN} --prompt 'a cat' <&-").returncode == 0
    done = shell(f"{RUN} <&-")
    assert done.returncode == 2
    assert "there is no prompt" in done.stderr


def test_stdin_is_the_prompt_or_goes_before_it(shell):
    direct = shell(f"{RUN} --prompt $'a fox\\n\\na cat'").stdout
    assert shell(f"echo 'a fox' | {RUN} --prompt 'a cat'").stdout == direct
    alone = shell(f"{RUN} --prompt 'a cat'").stdout
    assert alone != direct
    assert shell(f"echo 'a cat' | {RUN}").stdout == alone
    assert shell(f"echo 'a cat' | {RUN} --prompt-file -").stdout == alone


def test_a_prompt_that_is_not_utf8_is_refused(shell):
    done = shell(f"printf 'a \\xff' | {RUN}")
    assert done.returncode == 2
    assert "not UTF-8: byte 0xff at offset 2" in done.stderr
    done = shell(f"{RUN} --prompt $'a \\xff'")
    assert done.returncode == 2
    assert "UTF-8" in done.stderr


def test_any_locale_writes_utf8(shell):
    plain = shell(f"{RUN} --prompt 🦊 --format json")
    other = shell(f"LC_ALL=C PYTHONUTF8=0 {RUN} --prompt 🦊 --format json")
    assert json.loads(other.stdout)["text"] == json.loads(plain.stdout)["text"]


def on_a_terminal(command: list[str], **environment: str) -> str:
    """What a terminal of 80 columns receives from a command that owns it."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=writer,
        stdout=writer,
        stderr=writer,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    os.close(writer)
    seen = b""
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:  # how Linux says that the last writer is gone
            break
        if not chunk:
            break
        seen += chunk
    os.close(reader)
    assert process.wait(timeout=60) == 0
    return seen.decode()


def test_on_a_terminal_progress_is_shown_and_taken_away_before_the_text(checkpoint):
    command = [
        sys.executable,
        "-m",
        "dgen",
        "generate",
        "-m",
        str(checkpoint),
        "--prompt",
        "a cat",
        "--seed",
        "1",
    ]
    alone = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout
    seen = on_a_terminal(command, TERM="xterm-256color")
    assert "importing torch" in seen
    assert "loading the checkpoint" in seen
    last_erasure = seen.rindex("\x1b[2K")
    assert "eos" in seen[last_erasure:] or "length" in seen[last_erasure:]
    assert len(seen[last_erasure:]) > len(alone), "text was written before the progress line was gone"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}], ids=str)
def test_a_dumb_terminal_gets_no_styles_and_a_colourless_one_no_colours(checkpoint, environment):
    command = [
        sys.executable,
        "-m",
        "dgen",
        "generate",
        "-m",
        str(checkpoint),
        "--prompt",
        "a cat",
        "--seed",
        "1",
    ]
    seen = on_a_terminal(command, **environment)
    # NO_COLOR is about colours alone: the canvas still tells accepted from draft by weight.
    if "NO_COLOR" in environment:
        assert set(re.findall(r"\x1b\[([0-9;]*)m", seen)) <= {"", "0", "1", "2"}
    else:
        assert "\x1b" not in seen


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_keeps_what_was_committed_and_is_the_exit_code(checkpoint, number, code):
    command = [
        sys.executable,
        "-m",
        "dgen",
        "generate",
        "-q",
        "-m",
        str(checkpoint),
        "--prompt",
        "a cat",
        "--seed",
        "1",
    ]
    # Never confident, so that each canvas takes its time; hundreds of canvases.
    slow = ["--max-tokens", "400", "--steps", "400", "--confidence", "0", "--set", "entropy_bound=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *slow, "--format", "jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    first = process.stdout.readline()
    process.send_signal(number)
    rest, err = process.stdout.read(), process.stderr.read()
    process.wait(timeout=60)
    *tokens, completion = [json.loads(line) for line in (first + rest).splitlines()]
    assert process.returncode == code
    assert completion["finish_reason"] == "interrupted"
    assert completion["usage"]["completion_tokens"] == len(tokens) >= 1
    assert len(tokens) < 400
    assert "Traceback" not in err


def test_a_shell_loop_keeps_its_own_stdin(shell, tmp_path):
    (tmp_path / "names").write_text("a cat\nred fox\nthe sun\n")
    done = shell(f'while read -r line; do {RUN} --prompt "$line" --format json; done < {tmp_path}/names')
    assert len(done.stdout.splitlines()) == 3
    alone = shell(f"{RUN} --prompt 'red fox' --format json </dev/null")
    assert json.loads(done.stdout.splitlines()[1])["text"] == json.loads(alone.stdout)["text"]


def test_a_plain_kill_keeps_what_was_committed_and_is_exit_143(shell):
    slow = "--max-tokens 400 --steps 400 --confidence 0 --set entropy_bound=0 --format jsonl"
    done = shell(
        f"{RUN} --prompt 'a cat' {slow} > out & pid=$!; while [ ! -s out ]; do sleep 0.2; done; "
        "kill $pid; wait $pid; echo $?; tail -n 1 out; rm out"
    )
    code, last = done.stdout.splitlines()
    assert code == "143"
    assert json.loads(last)["finish_reason"] == "interrupted"


def test_help_on_a_full_disk_is_one_line(shell):
    for asked in ("--help", "--version", "bench step --help"):
        done = shell(f"$DGEN {asked} > /dev/full")
        assert done.returncode == 1
        assert "Error:" in done.stderr
        assert "bug" not in done.stderr
        assert "Errno" not in done.stderr
