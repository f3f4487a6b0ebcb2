"""Measure on one card what docs/performance.md says of the fused denoiser, as JSON files in a folder.

    python scripts/measure_card.py --output figures
    python scripts/measure_card.py --output figures --only step,buckets
    python scripts/measure_card.py --output figures --arch tiny --device cpu

One process, so that torch is imported once; a part that fails is named and the others go on, unless it has left the
card unusable. On an H200 all parts but batch and infill, which have not run there, take five minutes. On a CPU the
kernels need TRITON_INTERPRET=1 or the reference denoiser takes their place: it shows that the script runs, and nothing
else.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import pty
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kill_batch import prompts

import dgen
from dgen.cli.main import run
from dgen.engine.events import Finished

STORY = "Tell me a story about a brave fox."


def main() -> int:
    """Run the parts one after the other; 1 if one has failed."""
    parts: dict[str, Callable[[argparse.Namespace], None]] = {
        "doctor": doctor,
        "step": step,
        "generate": generate,
        "long": long,
        "exactness": exactness,
        "buckets": buckets,
        "canvas": canvas,
        "batch": batch,
        "quality": quality,
        "infill": infill,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for the figures")
    parser.add_argument("--arch", default="26b-a4b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(parts), help="parts, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no part later than this")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    asked.large = asked.arch == "26b-a4b"
    began, failed = time.monotonic(), 0
    for name in asked.only.split(","):
        part_began = time.monotonic()
        if part_began - began > asked.seconds:
            print(f"{name}: no time left", flush=True)
            continue
        try:
            parts[name](asked)
            outcome = "done"
        except (Exception, SystemExit):
            failed, outcome = 1, traceback.format_exc()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        now = time.monotonic()
        print(f"[{now - began:.0f} s] {name}: {outcome} in {now - part_began:.0f} s", flush=True)
    return failed


def doctor(asked: argparse.Namespace) -> None:
    """Whether kernels and fused denoiser agree with their references here at all."""
    write(asked, "doctor", told(lambda: run(["doctor", "--json", "--device", asked.device])))


def step(asked: argparse.Namespace) -> None:
    """A denoising step at a prompt of 1k tokens, with transformers beside it."""
    bench(asked, "step", *sizes(asked, "1024", "1,4,8"), "--repeats", "10" if asked.large else "1")


def long(asked: argparse.Namespace) -> None:
    """A denoising step behind 32k tokens."""
    bench(
        asked,
        "step",
        *sizes(asked, "32768", "1"),
        "--repeats",
        "10" if asked.large else "1",
        "--peer",
        "none",
        name="step-long",
    )


def generate(asked: argparse.Namespace) -> None:
    """Whole requests alone and by eight, with and without log-probabilities."""
    length = ["--repeats", "3"] if asked.large else ["--tokens", "32", "--steps", "2", "--repeats", "1"]
    bench(asked, "generate", *sizes(asked, "128,1024", "1,8"), "--logprobs", "20", *length)


def sizes(asked: argparse.Namespace, tokens: str, batch: str) -> list[str]:
    return ["--prompt-tokens", tokens if asked.large else "32", "--batch", batch]


def bench(asked: argparse.Namespace, command: str, *options: str, name: str = "") -> None:
    argv = ["bench", command, "--arch", asked.arch, "--device", asked.device, "--format", "json", *options]
    write(asked, name or command, told(lambda: run(argv)))


def exactness(asked: argparse.Namespace) -> None:
    """The distance to fp32 beside that of transformers' own bf16, over all layers and over six."""
    for layers in ([], ["--layers", "6"]):
        argv = ["--arch", asked.arch, "--device", asked.device, *layers]
        if asked.device == "cpu":
            argv += ["--dtype", "float32", "--prompt-tokens", "32"]
        write(asked, f"exactness{'-6' if layers else ''}", told(lambda argv=argv: script("exactness", argv)))
        gc.collect()


def buckets(asked: argparse.Namespace) -> None:
    """How many requests get other tokens beside seven strangers than alone, which is another size of batch."""
    found = {}
    lines = [line["prompt"] for line in prompts(160 if asked.large else 16)]
    for dtype in ("float32", "bfloat16"):
        ids: dict[int, dict[str, list[int]]] = {}
        for slots in (1, 8):
            model = dgen.load("builtin", device=asked.device, dtype=dtype, slots=slots)
            jobs = (model.job(text, seed=i, request_id=str(i)) for i, text in enumerate(lines))
            ids[slots] = {
                job.request_id: [token.token_id for token in event.completion.tokens]
                for job, event in model.run_many(jobs)
                if isinstance(event, Finished)
            }
        other = [key for key, own in ids[1].items() if ids[8][key] != own]
        found[dtype] = {
            "requests": len(lines),
            "others": len(other),
            "denoiser": model.denoiser.name,
            "tokens": sum(map(len, ids[1].values())),
        }
    write(asked, "buckets", json.dumps(found, indent=1))


def canvas(asked: argparse.Namespace) -> None:
    """Tokens a second of a story with the live canvas on a terminal, and without; runs alternate."""
    rates: dict[str, list[float]] = {"on": [], "off": []}
    tokens = "2000" if asked.large else "64"
    for _ in range(4 if asked.large else 1):
        for draft in ("off", "on"):
            argv = ["generate", "--prompt", STORY, "--seed", "3", "--format", "json", "--draft", draft]
            argv += ["--device", asked.device, "--max-tokens", tokens, "--set", "confidence=0"]
            with terminal():
                record = json.loads(told(lambda argv=argv: run(argv)))
            rates[draft].append(record["usage"]["denoising_steps"] / record["timing"]["total"])
    write(asked, "canvas", json.dumps({"steps_per_second": rates}, indent=1))


@contextlib.contextmanager
def terminal() -> Any:
    """Let stderr be a terminal of 80 columns that somebody reads."""
    reader, writer = pty.openpty()
    saved, stream = os.dup(2), sys.stderr
    os.dup2(writer, 2)
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.environ["TERM"], os.environ["COLUMNS"], os.environ["LINES"] = "xterm-256color", "80", "24"

    def drain() -> None:
        with contextlib.suppress(OSError):
            while os.read(reader, 65536):
                pass

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = stream
        os.dup2(saved, 2)
        os.close(saved)
        os.close(writer)
        thread.join(5)


def batch(asked: argparse.Namespace) -> None:
    """A file of prompts through the built-in checkpoint: one slot and eight, log-probabilities and none."""
    source = asked.output / "prompts.jsonl"
    lines = [{"id": line["id"], "prompt": line["prompt"]} for line in prompts(120 if asked.large else 16)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = {}
    for slots in ("1", "8"):
        for width in ("none", "20"):
            target = asked.output / "answers.jsonl"
            argv = [
                "generate",
                "-q",
                "--input",
                str(source),
                "--output",
                str(target),
                "--overwrite",
                "--seed",
                "1",
            ]
            argv += [
                "--device",
                asked.device,
                "--slots",
                slots,
                *([] if width == "none" else ["--logprobs", width]),
            ]
            began = time.monotonic()
            if run(argv):
                raise RuntimeError(f"{argv} failed")
            found[f"slots {slots}, logprobs {width}"] = time.monotonic() - began
            target.unlink()
    source.unlink()
    write(asked, "batch", json.dumps({"prompts": len(lines), "seconds, loading included": found}, indent=1))


def quality(asked: argparse.Namespace) -> None:
    """The built-in checkpoint's own figures on this device."""
    each = "40" if asked.large else "1"
    file = str(asked.output / "quality.json")
    script("make_builtin", ["measure", "--each", each, "--device", asked.device, "--output", file])


def infill(asked: argparse.Namespace) -> None:
    """Gaps and choices on this device."""
    for what in ("infill", "choose"):
        argv = [what, "--device", asked.device, "--output", str(asked.output / f"{what}.json")]
        script("measure_infill", [*argv, "--count", "100" if asked.large else "1"])


def script(name: str, argv: list[str]) -> int:
    saved, sys.argv = sys.argv, [name, *argv]
    try:
        return importlib.import_module(name).main() or 0
    finally:
        sys.argv = saved


def told(call: Callable[[], int]) -> str:
    """What the call prints; an error where it does not return 0."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        code = call()
    if code:
        raise RuntimeError(f"exit code {code} after {stream.getvalue()}")
    return stream.getvalue()


def write(asked: argparse.Namespace, name: str, text: str) -> None:
    (asked.output / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
