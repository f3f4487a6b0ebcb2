"""Streams that fail: pipes that close, full devices, closed descriptors; simulated, then for real."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path

import pytest

from dgen import errors
from dgen.cli.sink import ClosedPipe, Sink, standard_streams
from dgen.errors import DgenError, OutputError
from dgen.output.text import Piece

ROOT = Path(errors.__file__).parents[1]

ENDED = {"finish_reason": "eos"}


class Failing(io.StringIO):
    """Takes no text, for the reason `number`."""

    def __init__(self, number: int, *, when: str = "flush") -> None:
        super().__init__()
        self.number, self.when, self.attempts = number, when, 0

    def _fail(self, when: str) -> None:
        if when == self.when:
            self.attempts += 1
            raise OSError(self.number, os.strerror(self.number))

    def write(self, text: str) -> int:
        self._fail("write")
        return len(text)

    def flush(self) -> None:
        if not self.closed:
            self._fail("flush")


def answer(text: str) -> Piece:
    return Piece(text, "answer", ())


@pytest.mark.parametrize("when", ["write", "flush"])
def test_full_disk_is_an_output_error_once(when: str) -> None:
    stdout = Failing(errno.ENOSPC, when=when)
    sink = Sink(stdout, io.StringIO())
    with pytest.raises(
        OutputError, match="can't write to standard output: No space left on device"
    ) as caught:
        sink.piece(answer("a"))
    assert caught.value.exit_code == 1
    assert caught.value.hint
    attempts = stdout.attempts
    sink.piece(answer("b"))
    sink.completion(ENDED)
    sink.error(caught.value)
    sink.close()
    assert stdout.attempts == attempts


def test_error_that_the_system_tells_at_the_close_is_an_output_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    close = os.close

    def over_quota(number: int) -> None:
        close(number)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with (tmp_path / "out").open("w", encoding="utf-8") as stdout:
        sink = Sink(stdout, io.StringIO())
        sink.piece(answer("a\n"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "close", over_quota)
            with pytest.raises(OutputError, match="quota"):
                sink.close()


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET])
def test_reader_that_went_away_is_a_closed_pipe(number: int) -> None:
    with pytest.raises(ClosedPipe):
        Sink(Failing(number), io.StringIO()).piece(answer("a"))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EBADF, errno.ENOSPC])
def test_failing_stderr_is_given_up_in_silence(number: int) -> None:
    stdout = io.StringIO()
    sink = Sink(stdout, Failing(number))
    sink.note("a")
    sink.piece(Piece("b", "reasoning", ()))
    sink.piece(answer("c"))
    sink.error(DgenError("d"))
    sink.close()
    assert stdout.getvalue() == "c\n"


def test_streams_that_do_not_exist() -> None:
    sink = Sink(None, None)
    sink.note("a")
    sink.error(DgenError("b", hint="c"))
    with pytest.raises(OutputError, match="standard output is closed"):
        sink.check()
    sink.close()
    with pytest.raises(OutputError, match="standard output is closed"):
        Sink(None, io.StringIO()).piece(answer("a"))


def test_standard_streams_of_a_captured_process_are_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    stdout, stderr = standard_streams()
    assert stderr is None
    Sink(stdout, stderr).piece(answer("é\r\n"))
    assert buffer.getvalue() == "é\r\n".encode()


DRIVER = """
import os, sys
from dgen.cli.sink import ClosedPipe, Sink, standard_streams
from dgen.errors import OutputError
from dgen.output.text import Piece

def main():
    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr)
    try:
        sink.note("noted caf\\u00e9")
        for _ in range(int(sys.argv[1])):
            sink.piece(Piece("na\\u00efve \\U0001f600 text\\n" * 200, "answer", ()))
            sink.piece(Piece("hm", "reasoning", ()))
        sink.close()
    except ClosedPipe:
        return 0
    except OutputError as error:
        sink.error(error)
        sink.close()
        return error.exit_code
    return 0

sys.exit(main())
"""
LINE = "naïve 😀 text\n".encode()


def drive(tail: str, *, count: int = 40, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """The driver in a shell, whose last line is its exit code in `code:N` on the shell's stderr."""
    command = f'{{ "$PYTHON" -c "$DRIVER" {count} {tail}'
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "", "PYTHON": sys.executable, "DRIVER": DRIVER, **environ},
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_head_ends_the_run_with_zero_and_no_word(unbuffered: str) -> None:
    done = drive("; echo code:$? >&2; } | head -c 1", PYTHONUNBUFFERED=unbuffered)
    assert done.stdout == LINE[:1]
    assert done.stderr.decode().split("\n")[0].startswith("noted")
    assert done.stderr.endswith(b"code:0\n")
    assert b"Traceback" not in done.stderr
    assert b"ignored" not in done.stderr


def test_reader_gone_before_the_first_byte() -> None:
    done = drive("; echo code:$? >&2; } | true", count=2000)
    assert done.stderr.endswith(b"code:0\n")
    assert b"Traceback" not in done.stderr
    assert b"ignored" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_device_is_one_error_line(unbuffered: str) -> None:
    done = drive("> /dev/full; echo code:$? >&2; }", PYTHONUNBUFFERED=unbuffered)
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "noted café"
    assert lines[1] == "Error: can't write to standard output: No space left on device"
    assert lines[2].startswith("Hint: ")
    assert lines[3:] == ["code:1"]


def test_closed_stdout_is_one_error_line() -> None:
    done = drive(">&-; echo code:$? >&2; }")
    lines = done.stderr.decode().splitlines()
    assert lines[1] == "Error: standard output is closed"
    assert lines[-1] == "code:1"
    assert len(lines) == 4


def test_closed_stderr_is_no_one_elses_business() -> None:
    done = drive("2>&-; echo code:$? >&2; }", count=2)
    assert done.stdout == LINE * 400
    assert done.stderr == b"code:0\n"


def test_full_stderr_is_no_one_elses_business() -> None:
    done = drive("2>/dev/full; echo code:$? >&2; }", count=2)
    assert done.stdout == LINE * 400
    assert done.stderr == b"code:0\n"


def test_stderr_whose_reader_left_is_no_one_elses_business() -> None:
    done = drive("2>&1 >/dev/fd/3 | true; echo code:${PIPESTATUS[0]} >&2; } 3>&1", count=400)
    assert done.stdout == LINE * 200 * 400
    assert done.stderr == b"code:0\n"


def test_everything_closed_still_ends() -> None:
    done = drive("<&- >&- 2>&-; code=$?; } ; echo code:$code")
    assert done.stdout == b"code:1\n"


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_output_is_utf8_in_any_locale(locale: dict[str, str]) -> None:
    done = drive("; echo code:$? >&2; }", count=1, **locale)
    assert done.stdout == LINE * 200
    assert done.stderr.decode().splitlines() == ["noted café", "hm", "code:0"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_write_cut_short_by_a_signal_loses_nothing(unbuffered: str) -> None:
    code = (
        "import signal\nfrom dgen.cli.sink import Sink, standard_streams\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "sink = Sink(*standard_streams())\nsink.document('x' * 300_000)\nsink.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout is not None
        waiting, full = array("i", [0]), fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
        while waiting[0] < full and process.poll() is None:
            fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
        process.send_signal(signal.SIGINT)  # the pipe is full: it interrupts the write
        taken = process.stdout.read()
    assert len(taken) == 300_001


def test_closed_standard_descriptors_are_taken_before_another_file_can(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom dgen.cli.sink import standard_streams\n"
        f"standard_streams()\nsys.exit(open({str(tmp_path / 'x')!r}, 'w').fileno() < 3)"
    )
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" <&- 2>&-', sys.executable, code], cwd=ROOT, check=False
    )
    assert done.returncode == 0
