"""The writer: a line counts once it is on the disk, and a record that can't be built is a failed one."""

from __future__ import annotations

import json
import os

import pytest
from batching import batch, by_id, generator, read_lines, write_lines
from jsonschema import Draft202012Validator

from dgen.batch.results import Results
from dgen.batch.tally import Tally
from dgen.batch.writer import Writer
from dgen.errors import NumericalError, OutputError
from dgen.output.schema import schema

VALIDATOR = Draft202012Validator(schema())
SAY_HI = {"messages": [{"role": "user", "content": "hi"}]}


class Logged(Tally):
    """Writes down what is counted."""

    def __setattr__(self, name, value):
        if name in ("done", "failed") and value:
            log.append(name)
        super().__setattr__(name, value)


log: list[str] = []


@pytest.fixture
def system(monkeypatch):
    """What reaches the system, in `log`, in its order."""
    log.clear()
    write, fsync = os.write, os.fsync

    def logged_write(descriptor, data):
        log.append("write")
        return write(descriptor, bytes(data)[:3])  # the system may take less than it is given

    def logged_fsync(descriptor):
        log.append("fsync")
        fsync(descriptor)

    monkeypatch.setattr(os, "write", logged_write)
    monkeypatch.setattr(os, "fsync", logged_fsync)
    return monkeypatch


def test_a_line_is_written_then_synced_then_counted(tmp_path, system):
    results, tally = Results(str(tmp_path / "out")), Logged()
    log.clear()
    with Writer(results, tally) as writer:
        writer.put(lambda: {"a": 1}, 1)
        writer.put(lambda: {"b": 2}, 2, failed=True)
    results.close()
    assert log == [*["write"] * 3, "fsync", "done", *["write"] * 3, "fsync", "failed"]
    assert read_lines(tmp_path / "out") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_what_is_not_on_the_disk_is_an_error_and_not_counted(tmp_path, system, failing):
    results, tally = Results(str(tmp_path / "out")), Tally()
    results.append(b"{}", 1)

    def fail(*args):
        raise OSError(5, "Input/output error")

    system.setattr(os, failing, fail)
    with (
        pytest.raises(OutputError, match="Input/output error"),
        Writer(results, tally) as writer,
    ):
        writer.put(lambda: {"a": 1}, 2)
    results.close()
    assert (tally.done, tally.failed) == (0, 0)
    assert (tmp_path / "out").read_bytes() == b"{}\n"


def test_nobody_waits_for_a_writer_that_cannot_write(tmp_path, monkeypatch):
    results, tally = Results(str(tmp_path / "out")), Tally()

    def fail(line, number):
        raise OutputError("no room")

    def fill() -> None:
        with Writer(results, tally) as writer:
            for number in range(200):  # more than may wait
                writer.put(lambda: {"a": 1}, number)

    monkeypatch.setattr(results, "append", fail)
    with pytest.raises(OutputError, match="no room"):
        fill()
    results.close()
    assert tally.done == 0


NUMERICAL = "log-probability of token 3 at position 0 is nan"
REASONS = {
    "a": None,
    "b": NUMERICAL,
    "c": "unexpected RuntimeError in writing the record: two",
    "d": "unexpected ZeroDivisionError in writing the record: no reason given",
    "e": "unexpected ValueError in writing the record: Out of range float values",
    "f": NUMERICAL,
    "g": None,
}


def test_a_record_that_cannot_be_built_fails_alone_and_is_run_again(tmp_path):
    lines = [{"custom_id": x, "body": SAY_HI} if x == "f" else {"id": x, "prompt": "a cat"} for x in REASONS]
    source, output = write_lines(tmp_path / "in", lines), tmp_path / "out"
    made = generator()
    record = made.record

    def breaking(job):
        name = list(REASONS)[int(job.request_id) - 1]
        if REASONS[name] == NUMERICAL:
            raise NumericalError(NUMERICAL, hint="Report it.")
        if name in ("c", "d"):
            raise RuntimeError("two\nlines") if name == "c" else ZeroDivisionError
        return {**record(job), "text": float("inf")} if name == "e" else record(job)

    made.record = breaking
    tally, told = batch(source, output, made)
    assert (tally.done, tally.failed, tally.left) == (2, 5, 0)
    for line in read_lines(output):
        VALIDATOR.validate(line)
    found = by_id(output)
    assert found["f"]["response"]["status_code"] == 500
    assert found["f"]["error"]["message"] == NUMERICAL
    for name, reason in REASONS.items():
        if name != "f":
            assert (found[name]["error"] or "").startswith(reason or "")
            assert (found[name]["finish_reason"] == "error") == (reason is not None)
    numbers = [number for number, reason in enumerate(REASONS.values(), 1) if reason]
    assert sorted(text.split(":")[0] for text in told) == [f"line {number}" for number in numbers]

    tally, told = batch(source, output)
    assert (tally.before, tally.done, tally.failed, told) == (2, 5, 0, [])
    batch(source, tmp_path / "whole")
    assert by_id(output) == by_id(tmp_path / "whole")


def test_the_counts_are_right_at_any_time(tmp_path):
    """What is counted is never more than what the file holds."""
    output = tmp_path / "out"
    results, tally = Results(str(output)), Tally()
    with Writer(results, tally) as writer:
        for number in range(50):
            writer.put(lambda number=number: {"n": number}, number)
            counted = tally.done
            assert output.read_bytes().count(b"\n") >= counted
    results.close()
    assert tally.done == 50
    assert [json.loads(line)["n"] for line in output.read_text().splitlines()] == list(range(50))
