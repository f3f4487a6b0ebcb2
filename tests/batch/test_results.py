"""The output file: whole records or none, whatever is done to the writer."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random

import pytest

from dgen.batch import results as module
from dgen.batch.results import NoRecord, Results
from dgen.batch.resume import may_be_torn
from dgen.errors import OutputError, UsageError

NAMES = ("out.jsonl", "out.jsonl.gz")


def record(number: int) -> bytes:
    return json.dumps(
        {"type": "completion", "n": number, "text": "x\u2028é" * (number % 7)}, separators=(",", ":")
    ).encode()


def judge(line: bytes) -> int | None:
    try:
        return json.loads(line)["n"]
    except (ValueError, KeyError, TypeError):
        raise NoRecord("no record") from None


def opened(path, judge=judge, **options) -> Results:
    results = Results(str(path), **options)
    try:
        results.settle(judge, may_be_torn=may_be_torn)
    except BaseException:
        results.close()
        raise
    return results


def content(path) -> list[bytes]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.name.endswith(".gz") and data else data
    assert data == b"" or data.endswith(b"\n")
    return data.splitlines()


def write(path, numbers) -> None:
    results = opened(path)
    for number in numbers:
        results.append(record(number), number)
    results.close()


@pytest.mark.parametrize("name", NAMES)
def test_records_are_whole_after_each_append(tmp_path, name):
    path = tmp_path / name
    results = opened(path)
    for number in range(5):
        results.append(record(number), number)
        assert content(path) == [record(n) for n in range(number + 1)]
    results.close()


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_of_the_file_keeps_all_whole_records_and_can_go_on(tmp_path, name):
    path = tmp_path / name
    write(path, range(4))
    whole = path.read_bytes()
    starts = [0]
    for number in range(4):
        starts.append(starts[-1] + len(module.pack(record(number), compressed=name.endswith(".gz"))))
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        results = opened(path)
        kept = content(path)
        # A plain record without its newline, or a member without its checksum, is whole and kept.
        complete = sum(start <= cut for start in starts) - 1
        assert kept == [record(n) for n in range(len(kept))]
        assert complete <= len(kept) <= complete + 1
        results.append(record(9), 9)
        results.close()
        assert content(path) == [*kept, record(9)]


@pytest.mark.parametrize("name", NAMES)
def test_zeros_that_a_power_cut_left_are_cut_off(tmp_path, name):
    path = tmp_path / name
    write(path, range(3))
    with path.open("ab") as file:
        file.write(b"\0" * 5000)
    write(path, [3])
    assert content(path) == [record(n) for n in range(4)]


@pytest.mark.parametrize("name", NAMES)
def test_dropped_records_go_and_the_lock_stays(tmp_path, name):
    path = tmp_path / name
    write(path, range(6))
    path.chmod(0o640)
    results = opened(path, judge=lambda line: None if judge(line) % 2 else judge(line))
    assert content(path) == [record(n) for n in (0, 2, 4)]
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(OutputError, match="another process"):
        Results(str(path))
    results.append(record(1), 1)
    results.sort()
    with pytest.raises(OutputError, match="another process"):
        Results(str(path))
    results.close()
    assert content(path) == [record(n) for n in (0, 1, 2, 4)]
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_sorting_puts_records_into_their_order(tmp_path, name):
    path = tmp_path / name
    numbers = random.Random(0).sample(range(40), 40)
    write(path, numbers[:20])
    results = opened(path)
    for number in numbers[20:]:
        results.append(record(number), number)
    results.sort()
    assert content(path) == [record(n) for n in range(40)]
    results.append(record(40), 40)
    results.close()
    assert content(path)[-1] == record(40)


def test_a_gzip_file_that_was_packed_anew_is_taken_up(tmp_path):
    path = tmp_path / "out.jsonl.gz"
    whole = b"".join(record(n) + b"\n" for n in range(50))
    path.write_bytes(gzip.compress(whole[:700]) + gzip.compress(whole[700:]))
    write(path, [50])
    assert content(path) == [record(n) for n in range(51)]
    packed = gzip.compress(whole)
    path.write_bytes(packed[: len(packed) - 40])
    results = opened(path)
    results.close()
    kept = content(path)
    assert kept == [record(n) for n in range(len(kept))]
    assert len(kept) > 10


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("out.jsonl", b"my thesis"),
        ("out.jsonl", b"my thesis\n"),
        ("out.jsonl", b'{"a": 1}'),
        ("out.jsonl", os.urandom(2000).replace(b"\n", b"")),
        ("out.jsonl.gz", b"my thesis\n" * 100),
        ("out.jsonl.gz", gzip.compress(b"my thesis\n")),
        ("out.jsonl.gz", gzip.compress(b"my thesis")),
        ("out.jsonl.gz", gzip.compress(record(1) + b"\n") + b"junk" + gzip.compress(record(2) + b"\n")),
    ],
)
def test_a_file_of_somebody_else_is_refused_and_left_as_it_is(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError):
        opened(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", NAMES)
def test_blank_lines_are_passed_over_and_go_with_a_rewrite(tmp_path, name):
    path = tmp_path / name
    lines = [b"", record(1), b"  \t", record(0), b"", b" "]
    compressed = name.endswith(".gz")
    path.write_bytes(b"".join(module.pack(line, compressed=compressed) for line in lines))
    results = opened(path)
    assert content(path) == lines
    results.append(record(2), 2)
    assert content(path) == [*lines, record(2)]
    results.sort()
    results.close()
    assert content(path) == [record(n) for n in range(3)]


@pytest.mark.parametrize("name", NAMES)
def test_blanks_without_a_line_end_are_no_torn_record(tmp_path, name):
    path = tmp_path / name
    data = record(0) + b"\n \t"
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    write(path, [1])
    assert content(path) == [record(0), record(1)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rest", "torn"),
    [
        (b'{"type": "completion", "n": 1, "te', True),
        (b'  { "n" : 1, "text": "x', True),
        (b"{", True),
        (b'{"n": 1, "text": "x\0\0\0', True),
        (b'{"a": 1}', False),  # whole, and not ours
        (b'{"a": 1}\0\0', False),
        (b'["n", 1', False),
        (b"my thesis", False),
    ],
)
def test_a_cut_object_behind_records_is_torn_however_it_is_spaced(tmp_path, name, rest, torn):
    def packed(data: bytes) -> bytes:
        return gzip.compress(data) if name.endswith(".gz") else data

    path = tmp_path / name
    before = packed(record(0) + b"\n" + rest)
    path.write_bytes(before)
    if torn:
        write(path, [1])
        assert content(path) == [record(0), record(1)]
    else:
        with pytest.raises(UsageError, match="does not end with a record"):
            opened(path)
        assert path.read_bytes() == before
    path.write_bytes(packed(rest))
    with pytest.raises(UsageError) if rest != b"{" else contextlib.nullcontext():
        opened(path).close()


def test_overwriting_begins_anew_and_not_before_the_run_does(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"my thesis\n")
    results = opened(path, overwrite=True)
    assert path.read_bytes() == b"my thesis\n"
    results.begin()
    results.append(b"{}", 0)
    results.close()
    assert path.read_bytes() == b"{}\n"


def test_a_member_that_is_damaged_is_no_member_that_was_cut_off(tmp_path, monkeypatch):
    """Wherever the damage falls within what is read at a time, the records behind it are not thrown away."""
    monkeypatch.setattr("dgen.batch.extents._CHUNK", 64)
    path = tmp_path / "out.jsonl.gz"
    results = opened(path)
    results.begin()
    for number in range(4):
        results.append(record(number), number)
    results.close()
    whole = path.read_bytes()
    for at in range(20, len(whole) // 2, 7):
        path.write_bytes(whole[:at] + b"\xff" * 5 + whole[at + 5 :])
        with contextlib.suppress(UsageError):  # a header has bytes that mean nothing
            opened(path).close()
        assert len(path.read_bytes()) == len(whole), at


def test_a_full_disk_leaves_whole_records_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    results = opened(path)
    results.append(record(0), 0)

    def half(descriptor, data):
        os.write(descriptor, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_all", half)
    with pytest.raises(OutputError, match="No space left on device"):
        results.append(record(1), 1)
    results.close()
    assert content(path) == [record(0)]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_rewrite_that_fails_leaves_the_old_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "out.jsonl"
    write(path, range(3))
    before = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, failing, fail)
    with pytest.raises(OutputError):
        opened(path, judge=lambda line: judge(line) or None)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_link_stays_a_link(tmp_path):
    path, link = tmp_path / "real", tmp_path / "out.jsonl"
    link.symlink_to(path)
    write(link, [1, 0])
    results = opened(link)
    results.sort()
    results.close()
    assert link.is_symlink()
    assert content(path) == [record(0), record(1)]


def test_places_that_cannot_be_written_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "such", tmp_path / "out.jsonl" / "x"):
        (tmp_path / "out.jsonl").touch()
        with pytest.raises(UsageError):
            Results(str(path))


def test_a_pipe_is_only_written_to(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    results = opened(path)
    assert not results.resumable
    results.append(record(1), 1)
    assert os.read(reader, 1000) == record(1) + b"\n"
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        results.append(record(2), 2)
    results.close()


def test_reading_does_not_move_where_records_are_written(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, range(3))
    results = opened(path)
    with results._reader() as file:
        file.seek(0, io.SEEK_SET)
        file.read(3)
    results.append(record(3), 3)
    results.close()
    assert content(path) == [record(n) for n in range(4)]
