"""Words stay whole where a terminal is narrow, and a pipe gets lines as they are."""

from __future__ import annotations

import pytest
from traces import trace_text

from dgen.cli.trace_figures import canvas_lines
from dgen.cli.wrapping import columns_of, hanging
from dgen.output.trace_reader import parse_trace

TEXT = "the weights of builtin take 10.8 MB as bfloat16, 21.7 MB as float32"


def test_what_is_piped_is_one_line():
    assert hanging(TEXT, "ok    model  ", None) == [f"ok    model  {TEXT}"]
    assert columns_of(None) is None


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 79, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(columns):
    lines = hanging(TEXT, "ok    model  ", columns)
    assert all(len(line) <= columns for line in lines)
    assert " ".join(" ".join(lines).split()) == f"ok model {TEXT}"
    inset = 13 if columns - 13 >= 24 else 6
    assert all(line[:inset].isspace() and not line[inset].isspace() for line in lines[1:])


def test_a_text_of_nothing_leaves_its_head():
    assert hanging("", "stop  none  ", 5) == ["stop  none  "]


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        (62, set()),
        (61, {"temperature"}),
        (49, {"temperature"}),
        (48, {"temperature", "seconds"}),
        (38, {"temperature", "seconds", "changed"}),
    ],
)
def test_a_table_of_steps_goes_without_the_columns_that_do_not_fit(columns, missing):
    trace = parse_trace(trace_text().encode(), name="x")
    lines = list(canvas_lines(1, trace.canvases[0], trace.header["canvas_len"], columns, steps=True))
    heading, *rows = lines[next(at for at, line in enumerate(lines) if line.startswith("  step ")) :]
    names = ["step", "temperature", "mean entropy", "accepted", "changed", "seconds"]
    assert [name for name in names if name not in heading] == [name for name in names if name in missing]
    assert {len(row) for row in rows} == {len(heading)}
    assert len(heading) <= columns
