from dataclasses import replace

import pytest
import torch
from timed import CPU

from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.measure import Body, gigabytes
from dgen.errors import DgenError


def test_a_body_that_memory_cannot_hold_is_skipped_and_the_others_are_timed(bench):
    calls = []
    bodies = [Body("large", lambda: calls.append("large"), 3_000_000_000), Body("small", lambda: None, 10)]
    figure = replace(bench, free_memory=lambda _: 2_000_000_000).figure("key", "title", bodies)
    assert calls == []
    assert figure.of("large").skipped == "needs 3.0 GB of memory, 2.0 GB are free"
    assert figure.of("large").median is None
    assert len(figure.of("small").seconds) == 1


def test_running_out_of_memory_all_the_same_is_told(bench):
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    figure = bench.figure(
        "key", "title", [Body("greedy", fail, 7_000_000_000), Body("modest", lambda: None, 0)]
    )
    assert figure.of("greedy").skipped == "the device ran out of memory (7.0 GB were expected)"
    assert figure.of("modest").seconds


def test_a_failure_that_is_not_about_memory_is_not_hidden(bench):
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.figure("key", "title", [Body("broken", fail, 0)])


def test_progress_names_the_figure_the_body_and_the_repeat(bench):
    told = []
    replace(bench, repeats=2, progress=told.append).figure("key", "title", [Body("body", lambda: None, 0)])
    assert told == ["title: body, warm-up", "title: body 1/2", "title: body 2/2"]


def test_a_copy_counts_bytes_read_and_written(bench, clock):
    clock += [1.0, 1.5]
    found = copy_bandwidth(bench, copy_bytes=1 << 20)
    assert found.bytes == 2 << 20
    assert found.bytes_per_second == pytest.approx((2 << 20) / 0.5)


def test_the_copy_shrinks_to_a_quarter_of_what_is_free(bench):
    poor = replace(bench, free_memory=lambda _: 8 << 20)
    assert copy_bandwidth(poor, copy_bytes=1 << 30).bytes == 4 << 20


def test_no_memory_at_all_is_refused(bench):
    with pytest.raises(DgenError, match=r"1\.0 MB of memory are free on cpu"):
        copy_bandwidth(replace(bench, free_memory=lambda _: 1_000_000))
    assert bench.device == CPU


@pytest.mark.parametrize(
    ("size", "text"), [(1.5e9, "1.5 GB"), (50_000_000, "0.1 GB"), (49_000_000, "49.0 MB")]
)
def test_sizes_are_short(size, text):
    assert gigabytes(size) == text
