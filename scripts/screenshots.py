"""Make docs/images from real runs: the live canvas and `dgen trace show`, drawn by rich's own SVG export.

    python scripts/screenshots.py

Runs the built-in checkpoint on the CPU with a fixed seed: the same code makes the same pictures, but for the
request's name and its seconds.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

import dgen
from dgen.output.live.canvas import LiveCanvas
from dgen.output.live.frame import Row, Style

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
PROMPT, SEED, COLUMNS = "Tell me a story about a brave fox.", 3, 80
SHOWN_STEPS = (3, 13, 20)  # of the first canvas: hardly begun, half way, almost there
LOOKS = {Style.ACCEPTED: "", Style.NEW: "green", Style.DRAFT: "dim", Style.UNKNOWN: "dim"}


def _look_of(span: tuple[str, Style]) -> str:
    return LOOKS[span[1]]


class Frames:
    """A place for the live canvas that keeps what it is told to draw."""

    room = (COLUMNS, 24)

    def __init__(self) -> None:
        self.kept: list[Text] = []

    def draw(self, rows: Sequence[Row], status: str) -> None:
        # Neighbours of one look are one piece: viewers without the font space pieces as they like.
        lines = [
            Text.assemble(*(("".join(text for text, _ in run), look) for look, run in groupby(row, _look_of)))
            for row in rows
        ]
        self.kept.append(Text("\n").join([*lines, Text(status, "dim")]))

    def hide(self) -> None: ...

    def wrote(self, text: str) -> None: ...


def canvas() -> Console:
    """Three moments of one canvas."""
    model, frames = dgen.load("builtin", device="cpu"), Frames()
    job = model.job(PROMPT, seed=SEED)
    # A clock that gives every step its frame, and steps of 30 ms.
    ticks = iter(range(10**6))
    live = LiveCanvas(
        frames,
        vocabulary=model.checkpoint.vocabulary,
        max_steps=job.request.steps,
        hold_seconds=1e-9,
        is_over=lambda: True,
        clock=lambda: next(ticks) * 0.03,
    )
    for item in model.run(job):
        if not isinstance(item, dgen.Piece):
            live.see(item)
    console = _console()
    console.print(f'$ dgen generate --prompt "{PROMPT}"')
    for step in SHOWN_STEPS:
        # Without the rate, which is of this clock and not of a machine.
        frame = frames.kept[step]
        cut = frame.plain.rindex(" · ")
        console.print("", frame[:cut], sep="\n")
    return console


def trace_show() -> Console:
    """The figures of a trace of the same run."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.jsonl"
        command = [sys.executable, "-m", "dgen"]
        generate = [
            "generate",
            "-q",
            "--device",
            "cpu",
            "--prompt",
            PROMPT,
            "--seed",
            str(SEED),
            "--trace",
            path,
        ]
        subprocess.run([*command, *generate], check=True, stdout=subprocess.DEVNULL)
        shown = subprocess.run(
            [*command, "trace", "show", path], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
    console = _console()
    console.print(
        "$ dgen trace show run.jsonl", shown.stdout.rstrip("\n"), sep="\n", markup=False, highlight=False
    )
    return console


def _console() -> Console:
    return Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )


def save(console: Console, name: str) -> None:
    """Write the picture, without the fonts that rich would have a viewer fetch."""
    svg = console.export_svg(title="dgen", unique_id=f"dgen-{name}")
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(re.sub(r"[ \t]+\n", "\n", svg), encoding="utf-8")


if __name__ == "__main__":
    save(canvas(), "canvas")
    save(trace_show(), "trace")
