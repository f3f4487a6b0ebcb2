"""Kill a batch at random moments, resume it each time, and hold the result against an undisturbed run.

    python scripts/kill_batch.py --prompts 2000 --kills 10

Exits with 0 if every id is there exactly once and equal but for times. Works with any checkpoint and output form.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ANIMALS = ("fox", "bear", "owl", "cat", "dog", "hen", "mouse", "horse")
COUNTRIES = ("France", "Italy", "Spain", "Japan", "Peru", "Egypt", "Norway", "Greece")
LONG_EVERY = 40  # every so many lines a story, the rest short answers


def main() -> int:
    """Run the comparison; prints what happened and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--gzip", action="store_true", help="write .jsonl.gz")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return compare(asked, asked.folder or Path(scratch))


def compare(asked: argparse.Namespace, folder: Path) -> int:
    """Undisturbed and disturbed runs in `folder`, and their comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in prompts(asked.prompts)), encoding="utf-8")
    suffix = ".jsonl.gz" if asked.gzip else ".jsonl"
    whole, killed = folder / f"whole{suffix}", folder / f"killed{suffix}"
    command = [
        sys.executable,
        "-m",
        "dgen",
        "generate",
        "-q",
        "-m",
        asked.model,
        "--seed",
        "1",
        "--input",
        str(source),
    ]

    began = time.monotonic()
    subprocess.run([*command, "--output", str(whole), "--overwrite"], check=True)
    seconds = time.monotonic() - began
    print(f"undisturbed: {asked.prompts} prompts in {seconds:.0f} s", flush=True)

    killed.unlink(missing_ok=True)
    moments = random.Random(asked.seed)
    for number in range(1, asked.kills + 1):
        process = subprocess.Popen([*command, "--output", str(killed)])
        wait = moments.uniform(0, 2 * seconds / asked.kills)
        try:
            process.wait(timeout=wait)
            print(f"kill {number}: came too late, the run had ended", flush=True)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            size = killed.stat().st_size if killed.exists() else 0
            print(f"kill {number}: after {wait:.1f} s, {size} bytes{torn(killed)}", flush=True)
    subprocess.run([*command, "--output", str(killed)], check=True)
    return verdict(read(whole), read(killed), asked.prompts)


def prompts(count: int) -> list[dict[str, Any]]:
    """Sums, capitals and now and then a story; some with log-probabilities."""
    lines: list[dict[str, Any]] = []
    for n in range(count):
        if n % LONG_EVERY == 0:
            line: dict[str, Any] = {
                "prompt": f"Tell me a story about a brave {ANIMALS[n // LONG_EVERY % 8]}."
            }
        elif n % 2:
            line = {"prompt": f"What is {n % 11} plus {n % 9}?"}
        else:
            line = {"prompt": f"What is the capital of {COUNTRIES[n // 2 % 8]}?"}
        lines.append({"id": f"line-{n}", **line, **({"logprobs": 3} if n % 5 == 0 else {})})
    return lines


def torn(path: Path) -> str:
    """A word on a file that does not end with a whole record."""
    if not path.exists() or not path.stat().st_size or path.suffix == ".gz":
        return ""
    with path.open("rb") as file:
        file.seek(-1, 2)
        return "" if file.read() == b"\n" else ", torn"


def read(path: Path) -> list[dict[str, Any]]:
    """The records without their times."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        del record["timing"]
    return records


def verdict(whole: list[dict[str, Any]], killed: list[dict[str, Any]], count: int) -> int:
    """Says what differs."""
    expected = {record["id"]: record for record in whole}
    found = {record["id"]: record for record in killed}
    different = [key for key, record in found.items() if expected.get(key) != record]
    print(f"{len(killed)} records, {len(found)} ids, {len(different)} different, {count} asked for")
    good = len(whole) == len(expected) == len(killed) == len(found) == count and not different
    print("equal" if good else "NOT EQUAL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
