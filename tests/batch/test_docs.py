"""docs/jsonl.md and what is: its fields are the schema's, its flags the command's, its lines can be run."""

from __future__ import annotations

import re
from pathlib import Path

from batching import LAYERS

from dgen.batch.item import REQUEST_SETTINGS, Reader
from dgen.batch.lines import Line
from dgen.cli.main import run
from dgen.output.schema import schema

PAGE = (Path(__file__).parent.parent.parent / "docs" / "jsonl.md").read_text(encoding="utf-8")


def named(section: str) -> set[str]:
    """Words in the first column's backticks of a section's table, and in the lists of its second one."""
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return {word for row in rows for words in re.findall(r"`([a-z_ ]+)`", row) for word in words.split()}


def test_every_field_of_a_record_is_told():
    told = named(PAGE.split("## What comes out")[1].split("## Ten pipelines")[0])
    definitions = schema()["$defs"]
    for kind in ("line", "usage", "entry"):
        assert set(definitions[kind]["properties"]) <= told, kind


def test_every_setting_of_a_line_is_told():
    assert set(REQUEST_SETTINGS) <= named(PAGE.split("## What goes in")[1].split("## What comes out")[0])


def test_the_example_lines_can_be_run():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    reader = Reader(LAYERS)
    items = [reader.read(Line(number, line.encode())) for number, line in enumerate(block.splitlines(), 1)]
    assert [item.id for item in items] == ["1", "fox", "q3"]


def test_every_flag_exists(capfd):
    assert run(["generate", "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]+", capfd.readouterr().out))
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known


def test_ten_pipelines_are_ten():
    numbers = re.findall(r"^\*\*(\d+)\. .*?\((jq|pandas|polars|DuckDB)\)", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in numbers] == list(range(1, 11))
    assert {tool for _, tool in numbers} == {"jq", "pandas", "polars", "DuckDB"}
