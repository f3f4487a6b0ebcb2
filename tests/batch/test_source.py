"""Where lines come from: files that are checked whole, streams that are not; shards; changes meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import time

import pytest
from batching import LAYERS, write_lines

from dgen.batch.item import Item, Reader
from dgen.batch.source import FileSource, Problem, Shard, StreamSource, is_stream
from dgen.errors import UsageError

READER = Reader(LAYERS, model="scripted")


ALL = Shard()


def check(path, shard=ALL):
    problems: list[Problem] = []
    source = FileSource(str(path), READER, shard)
    return source, source.check(problems.append), problems


def taken(source) -> list[Item | Problem]:
    found = []
    while (item := source.take(wait=True)) is not None:
        found.append(item)
    return found


def test_every_bad_line_is_told_with_its_number_and_reason(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(
        b'{"prompt":"a"}\n\n{"promt":"b"}\nnot json\n{"prompt":"c"}\r\n{"prompt":"\xff"}\n{"id":"1","prompt":"d"}'
    )
    _, entries, problems = check(path)
    assert [problem.number for problem in problems] == [3, 4, 6, 7]
    assert "did you mean 'prompt'" in problems[0].reason
    assert problems[3].reason == "the id '1' is that of line 1 already"
    assert list(entries) == ["1", "5"]


def test_ids_that_look_the_same_are_the_same(tmp_path):
    _, _, problems = check(
        write_lines(tmp_path / "in", [{"id": 5, "prompt": "a"}, {"id": "5", "prompt": "a"}])
    )
    assert [problem.number for problem in problems] == [2]


def test_a_file_is_given_as_it_was_checked(tmp_path):
    path = write_lines(tmp_path / "in", [{"prompt": str(n)} for n in range(5)])
    source, entries, _ = check(path)
    with path.open("a") as file:
        file.write('{"prompt":"late"}\n')
    source.begin(lambda item: item.number != 2)
    found = taken(source)
    assert [item.prompt for item in found] == ["0", "2", "3", "4"]
    assert source.ended
    assert {item.key: item.request_hash for item in found}.items() <= {
        key: entry.request_hash for key, entry in entries.items()
    }.items()


def test_a_file_that_is_replaced_meanwhile_is_none_of_ours(tmp_path):
    path = write_lines(tmp_path / "in", [{"prompt": "old"}])
    source, _, _ = check(path)
    write_lines(tmp_path / "new", [{"prompt": "new"}]).rename(path)
    source.begin(lambda item: True)
    assert [item.prompt for item in taken(source)] == ["old"]


def test_gzip_is_read_by_its_name(tmp_path):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt":"a"}\n') + gzip.compress(b'{"prompt":"b"}\n'))
    source, entries, _ = check(path)
    source.begin(lambda item: True)
    assert (len(entries), [item.prompt for item in taken(source)]) == (2, ["a", "b"])
    for broken in (path.read_bytes()[:-5], b"plain", path.read_bytes()[:20] + b"\0" * 40):
        path.write_bytes(broken)
        with pytest.raises(UsageError, match="can't read the input"):
            check(path)


@pytest.mark.parametrize(
    ("data", "says"), [(b"", "no prompt"), (b"\n \n", "no prompt"), (b' [\n {"prompt":"a"}]', "JSON array")]
)
def test_files_that_hold_no_lines_are_refused_as_a_whole(tmp_path, data, says):
    (tmp_path / "in").write_bytes(data)
    with pytest.raises(UsageError, match=says):
        check(tmp_path / "in")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing", tmp_path / "in" / "x"):
        (tmp_path / "in").touch()
        with pytest.raises(UsageError, match="can't read the input"):
            check(path)


def test_shards_split_the_lines_and_all_lines_are_checked(tmp_path):
    path = write_lines(tmp_path / "in", [{"id": f"i{n}", "prompt": str(n)} for n in range(11)])
    parts = [check(path, Shard(index, 3))[1] for index in (1, 2, 3)]
    assert [sorted(entry.number for entry in part.values()) for part in parts] == [
        [1, 4, 7, 10],
        [2, 5, 8, 11],
        [3, 6, 9],
    ]
    with path.open("a") as file:
        file.write('{"id":"i0","prompt":"again"}\n')
    for index in (1, 2, 3):
        assert [problem.number for problem in check(path, Shard(index, 3))[2]] == [12]


def test_a_line_that_changed_meanwhile_is_a_problem(tmp_path):
    path = write_lines(tmp_path / "in", [{"prompt": "a"}, {"prompt": "b"}])
    source, _, _ = check(path)
    with path.open("r+b") as file:
        file.seek(len('{"prompt": "a"}\n'))
        file.write(b"xxxx")
    source.begin(lambda item: True)
    first, second = taken(source)
    assert first.prompt == "a"
    assert "changed meanwhile" in second.reason


def stream(data: bytes = b"", **options):
    reader, writer = os.pipe()
    if data:
        os.write(writer, data)
    return StreamSource(reader, READER, Shard(**options)), writer


def test_a_stream_gives_what_has_come_and_waits_only_when_told_to():
    source, writer = stream(b'{"prompt":"a"}\n{"prompt":"b"}')
    assert source.take(wait=False).prompt == "a"
    assert source.take(wait=False) is None
    assert not source.ended
    os.write(writer, b"\n")
    assert source.take(wait=False).prompt == "b"
    timer = threading.Timer(0.05, lambda: (os.write(writer, b'{"prompt":"c"}'), os.close(writer)))
    timer.start()
    assert source.take(wait=True).prompt == "c"
    assert source.take(wait=True) is None
    assert source.ended


def test_a_streams_bad_lines_are_problems_and_repeated_ids_too():
    source, writer = stream(b'{"prompt":"a"}\nnope\n{"id":1,"prompt":"c"}\n')
    os.close(writer)
    found = taken(source)
    assert [item.number for item in found] == [1, 2, 3]
    assert [type(item) for item in found] == [Item, Problem, Problem]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"id": "x", "promt": "a"}, ("x", False)),
        ({"id": 5, "prompt": "a", "steps": 0}, (5, False)),
        ({"promt": "a"}, ("2", False)),
        ({"custom_id": "c", "body": {"messages": []}}, ("c", True)),
        ({"custom_id": "c", "method": "GET"}, ("c", True)),
        ({"custom_id": 7, "body": {}}, (None, False)),
        ({"id": "", "prompt": "a"}, (None, False)),
        ({"id": 2**70, "prompt": "a"}, (None, False)),
        ({"id": "first", "promt": "a"}, (None, False)),
        ({"id": "first", "prompt": "b"}, (None, False)),
        ({"id": "done", "promt": "a"}, (None, False)),
        ([1], (None, False)),
    ],
    ids=str,
)
def test_a_bad_line_of_a_stream_keeps_its_id_unless_another_has_it(line, named):
    source, writer = stream(b'{"id":"first","prompt":"a"}\n' + json.dumps(line).encode())
    os.close(writer)
    source.begin(lambda item: True, done={"done"})
    _, problem = taken(source)
    assert (problem.id, problem.envelope) == named


def test_a_stream_is_empty_once_it_has_ended_without_a_line():
    for data, empty in ((b"", True), (b"\n  \n", True), (b"nope", False), (b'{"prompt":"a"}\n', False)):
        source, writer = stream(data)
        assert not source.is_empty()
        os.close(writer)
        assert source.is_empty() == empty
        assert len(taken(source)) == (not empty)
        assert source.is_empty() == empty


def test_looking_whether_a_stream_is_empty_takes_nothing_from_it():
    source, writer = stream(b'{"prompt":"a"}\n{"prompt"')
    assert not source.is_empty()
    os.write(writer, b':"b"}')
    os.close(writer)
    assert [item.prompt for item in taken(source)] == ["a", "b"]


def test_a_stream_with_lines_of_other_shards_alone_is_not_empty():
    source, writer = stream(b'{"prompt":"a"}\n', index=2, count=2)
    os.close(writer)
    assert taken(source) == []
    assert not source.is_empty()


def test_a_waiting_stream_can_be_stopped():
    source, _ = stream()
    threading.Timer(0.05, source.stop).start()
    began = time.monotonic()
    assert source.take(wait=True) is None
    assert time.monotonic() - began < 30
    assert source.ended


def test_what_counts_as_a_stream(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    assert is_stream("-")
    assert is_stream(str(tmp_path / "pipe"))
    assert is_stream("/dev/null")
    assert not is_stream(str(tmp_path / "file"))
    assert not is_stream(str(tmp_path))
    assert not is_stream(str(tmp_path / "missing"))


def test_random_bytes_are_never_a_traceback(tmp_path):
    rng = random.Random(0)
    seeds = [
        b'{"prompt":"a"}',
        b'{"messages":[{"role":"user","content":"x"}]}',
        b'{"custom_id":"a","body":{"messages":[]}}',
    ]
    seeds += [
        b"\xff\xfe",
        b"\x00",
        b"NaN",
        b"[[[[",
        b'"\\ud83e"',
        b"\xef\xbb\xbf",
        b"1e999",
        b"{}",
        b'{"prompt":"\\u0000"}',
    ]
    for _ in range(300):
        data = bytearray(b"\n".join(rng.choice(seeds) for _ in range(rng.randrange(1, 8))))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "in").write_bytes(data)
        try:
            source, entries, problems = check(tmp_path / "in")
        except UsageError:
            continue
        source.begin(lambda item: True)
        assert all(problem.reason for problem in problems)
        assert len(entries) <= len(taken(source))
        assert json.dumps([problem.reason for problem in problems])
