"""Help: examples that can be copied, flags that don't look as if they took a value."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import typer

from dgen.cli.app import app

WIDTH = 80


def commands(group=None, path=()):
    """Each command with the words that call it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


EVERY = dict(commands())


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_an_example_is_not_broken_where_a_terminal_is_80_wide(path):
    lines = [line.strip() for line in (EVERY[path].help or "").splitlines()]
    examples = [line for line in lines if line.startswith("dgen ") or "| dgen " in line or "$ dgen" in line]
    assert [line for line in examples if len(line) > WIDTH - 2] == []
    assert examples or path == ("trace",)


@pytest.mark.parametrize("path", [(), ("generate",), ("doctor",), ("bench", "step"), ("trace", "show")])
def test_a_flag_does_not_look_as_if_it_took_a_value(dgen, path):
    done = dgen(*path, "--help")
    assert done.code == 0
    assert "<bool>" not in done.out
    assert "BOOLEAN" not in done.out
    flag = next(line for line in done.out.splitlines() if "--help" in line)
    assert flag.split()[1:] == ["--help", "-h", "Show", "this", "message", "and", "exit.", "│"]


def test_help_for_schema_says_whose_output_each_form_describes(dgen):
    said = " ".join(dgen("schema", "--help").out.replace("│", " ").split())
    for words in (
        "generate and chat write",
        "output lines of a batch",
        "generate --trace file",
        "dgen infill",
    ):
        assert words in said
    # The field of the example is there.
    assert "finish_reason" in json.loads(dgen("schema").out)["$defs"]["completion"]["properties"]


@pytest.mark.skipif(shutil.which("jq") is None, reason="the example needs jq")
def test_the_example_with_jq_prints_a_number_a_token_and_nothing_else(shell):
    (example,) = [line.strip() for line in EVERY["generate",].help.splitlines() if "| jq" in line]
    done = shell(example.replace("dgen ", "$DGEN ", 1), stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    logprobs = [float(line) for line in done.stdout.splitlines()]
    assert len(logprobs) > 1
    assert max(logprobs) <= 0
