"""What the README claims, run: its Python block, its shell lines' flags, its links."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from dgen.cli.main import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_block_runs_and_prints_an_answer():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})
    first, story = printed.getvalue().split("\n", 1)
    assert re.match(r".*\b12\b.* eos -?\d", first)
    assert "fox" in story
    assert "[canvas 0: " in story


def test_every_flag_in_the_readme_exists(capfd):
    for command in (
        ["generate"],
        ["infill"],
        ["choose"],
        ["bench"],
        *(["bench", name] for name in ("sampler", "step", "generate")),
        ["schema"],
    ):
        assert run([*command, "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]+", capfd.readouterr().out))
    for flag in set(re.findall(r"--[a-z][a-z-]+", README)):
        assert flag in known, flag


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://huggingface.co/") or (ROOT / target).is_file(), target
