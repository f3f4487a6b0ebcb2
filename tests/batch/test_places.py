"""Where an output lies: descriptors by name, and new files that harm no other."""

from __future__ import annotations

import fcntl
import os

import pytest

from dgen.batch.places import descriptor_of, new_beside
from dgen.batch.results import Results
from dgen.errors import UsageError


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("-", 1),
        ("/dev/stdout", 1),
        ("/dev/./stdout", 1),
        ("/dev/stderr", 2),
        ("/dev/fd/63", 63),
        ("/proc/self/fd/7", 7),
        ("./-", None),
        ("/dev/null", None),
        ("/dev/fd/", None),
        ("/dev/fd/x", None),
        ("dev/fd/1", None),
        ("out.jsonl", None),
    ],
)
def test_some_names_are_descriptors(path, number):
    assert descriptor_of(path) == number


def test_links_are_followed_to_a_descriptor_and_not_round_in_circles(tmp_path):
    link, circle = tmp_path / "link", tmp_path / "circle"
    (tmp_path / "between").symlink_to("/dev/stdout")
    link.symlink_to("between")
    circle.symlink_to(circle)
    assert descriptor_of(str(link)) == 1
    assert descriptor_of(str(circle)) is None


def test_a_descriptor_is_only_written_to(tmp_path, monkeypatch):
    """Neither resumed, locked nor synced, be it a pipe or a file with something in it."""
    path = tmp_path / "log"
    path.write_text("mine\n")
    reader, pipe = os.pipe()
    with path.open("a") as log:
        monkeypatch.setattr("dgen.batch.results.os.fsync", None)
        for number in (pipe, log.fileno()):
            results = Results(f"/dev/fd/{number}", overwrite=True)
            assert not results.resumable
            results.settle(lambda line: 1 / 0, may_be_torn=lambda rest, known: False)
            results.begin()
            results.append(b"{}", 0)
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            results.close()
    assert os.read(reader, 100) == b"{}\n"
    assert path.read_text() == "mine\n{}\n"
    os.close(reader)
    results = Results(f"/dev/fd/{pipe}")
    with pytest.raises(BrokenPipeError):
        results.append(b"{}", 0)
    results.close()
    os.close(pipe)


def test_a_descriptor_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    reader, writer = os.pipe()
    with pytest.raises(UsageError, match="reading alone"):
        Results(f"/dev/fd/{reader}")
    os.close(reader)
    os.close(writer)
    with pytest.raises(UsageError, match="no such descriptor"):
        Results("/dev/fd/999999")


def rewritten(path) -> None:
    """Open an output whose only record is to be dropped, which rewrites it."""
    results = Results(str(path))
    results.settle(lambda line: None, may_be_torn=lambda rest, known: False)
    results.close()


def test_a_rewrite_takes_no_name_that_something_has(tmp_path):
    path, other = tmp_path / "out.jsonl", tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "out.jsonl.dgen-new").symlink_to(other)
    (tmp_path / "out.jsonl.notes.dgen-new").write_text("mine too")
    path.write_text("{}\n")
    path.chmod(0o604)
    rewritten(path)
    assert path.read_text() == ""
    assert path.stat().st_mode & 0o777 == 0o604
    assert other.read_text() == "mine"
    assert len(os.listdir(tmp_path)) == 4


def test_what_a_killed_rewrite_left_goes_with_the_next_and_nothing_else_does(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("{}\n")
    names = ("out.jsonl", "out.jsonl", "out.json", "xout.jsonl")
    descriptors, made = zip(*[new_beside(str(tmp_path / name)) for name in names], strict=True)
    dead, alive, *others = made
    fcntl.flock(descriptors[1], fcntl.LOCK_EX)
    rewritten(path)
    assert not os.path.exists(dead)
    assert all(os.path.exists(name) for name in (alive, *others))
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_folder_that_cannot_be_listed_is_no_obstacle(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    path.write_text("{}\n")

    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dgen.batch.places.os.scandir", refuse)
    rewritten(path)
    assert path.read_text() == ""
