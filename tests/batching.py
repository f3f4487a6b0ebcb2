"""A Generator without a model: real engine, text and records over scripted logits that depend on the noise."""

from __future__ import annotations

import json
import os
import threading
import zlib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from scripted import Call, ScriptedDenoiser
from tiny import RELEASED_EOS, tiny_tokenizer

from dgen.batch.item import Reader
from dgen.batch.results import Results
from dgen.batch.resume import Resume, may_be_torn
from dgen.batch.runner import Runner
from dgen.batch.source import FileSource, Shard, StreamSource
from dgen.batch.tally import Tally
from dgen.batch.writer import Writer
from dgen.engine.engine import Engine
from dgen.generator import Generator
from dgen.sampler import kernels_for
from dgen.settings import Layer, resolve
from dgen.vocabulary import Vocabulary

VOCAB, CANVAS = 480, 6
BROKEN = "broken"
"""A prompt with this word gets NaN logits on its second step."""
ALL = Shard()
LAYERS = (Layer("test", {"max_tokens": 20, "steps": 5, "seed": 1}),)


@cache
def tokenizer() -> Any:
    return tiny_tokenizer()


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer())


@cache
def broken_ids() -> tuple[int, ...]:
    return tuple(tokenizer().encode(BROKEN, add_special_tokens=False))


def script(call: Call) -> torch.Tensor:
    """Logits of prompt, canvas number, step and canvas, and of nothing else."""
    key = zlib.crc32(repr((call.prompt, call.canvas, call.ids)).encode())
    logits = torch.rand(CANVAS, VOCAB, generator=torch.Generator().manual_seed(key)) * 12
    logits[:, list(RELEASED_EOS)] -= 2  # else the first canvas ends everything
    width = len(broken_ids())
    if call.step == 1 and any(call.prompt[at : at + width] == broken_ids() for at in range(len(call.prompt))):
        logits[2] = float("nan")
    return logits


class Crowded(ScriptedDenoiser):
    """Runs out of memory as soon as more than `room` slots step together, or a prompt is longer than `longest`."""

    room = 2
    longest = 10_000

    def denoise(self, slots: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        if len(slots) > self.room:
            raise torch.OutOfMemoryError("no memory")
        return super().denoise(slots, canvas)

    def prefill(self, slot: int, ids: torch.Tensor) -> None:
        if len(ids) > self.longest:
            raise torch.OutOfMemoryError("no memory")
        super().prefill(slot, ids)


def generator(
    *, num_slots: int = 3, kind: type[ScriptedDenoiser] = ScriptedDenoiser, layers=LAYERS
) -> Generator:
    """A Generator over `script`; contexts of 400 positions."""
    made = Generator.__new__(Generator)
    made.checkpoint = SimpleNamespace(
        tokenizer=tokenizer(),
        vocabulary=vocabulary(),
        eos_ids=frozenset(RELEASED_EOS),
        name="scripted",
        revision=None,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    made.resolved, made._layers, made.load_seconds = resolve(layers), tuple(layers), 0.0
    made.denoiser = kind(script, vocab_size=VOCAB, canvas_len=CANVAS, num_slots=num_slots, max_context=400)
    made.kernels = kernels_for("torch", "cpu")
    made.engine = Engine(made.denoiser, made.kernels)
    return made


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    """A file of lines of JSON."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a plain file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """What must not change from run to run: all but times."""
    record = json.loads(json.dumps(record))
    inside = record["response"]["body"] if "response" in record else record
    inside.pop("created", None)
    inside.get("dgen", inside).pop("timing")
    return record


def by_id(path: Path) -> dict[Any, dict[str, Any]]:
    """Comparable records by id, each of which must occur once."""
    records = [comparable(record) for record in read_lines(path)]
    ids = [record.get("custom_id", record.get("id")) for record in records]
    assert len(ids) == len(set(ids))
    return dict(zip(ids, records, strict=True))


class Finishing(Writer):
    """Counts lines as they are finished, which is before they are written."""

    finished = 0

    def put(self, *args: Any, **kwargs: Any) -> None:
        super().put(*args, **kwargs)
        self.finished += 1


def batch(
    source: Path,
    output: Path,
    made: Generator | None = None,
    *,
    layers=LAYERS,
    shard: Shard = ALL,
    interrupt_after: int | None = None,
) -> tuple[Tally, list[str]]:
    """What the command does with a file, in this process; `interrupt_after` counts finished lines."""
    made = made or generator(layers=layers)
    told: list[str] = []

    def tell(text: str, hint: str) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append(text)

    reader = Reader(layers, model="scripted")
    lines = FileSource(str(source), reader, shard)
    problems: list[Any] = []
    entries = lines.check(problems.append)
    assert not problems
    results = Results(str(output))
    try:
        resume = Resume(
            str(output),
            model="scripted",
            revision=None,
            seed=resolve(layers).settings.seed,
            entries=entries,
            find=lines.find,
        )
        results.settle(resume.judge, may_be_torn=may_be_torn)
        tally = Tally(total=lines.total, before=len(resume.done))
        with Finishing(results, tally, tell) as writer:
            runner = Runner(
                made,
                lines,
                writer,
                run_seed=resume.seed if resume.seed is not None else 1,
                tally=tally,
                tell=tell,
            )

            def show() -> None:
                if interrupt_after is not None and writer.finished >= interrupt_after:
                    runner.interrupt()

            runner._show = show
            lines.begin(lambda item: not resume.is_done(item))
            refused = runner.check_prompts(lambda: lines.take(wait=True))
            lines.begin(lambda item: item.number not in refused and not resume.is_done(item))
            runner.run()
    finally:
        results.close()
    return tally, told


def stream_batch(lines: list[Any], output: Path) -> Tally:
    """What the command does with a stream of lines, each given as data or as it stands."""
    reader, writer = os.pipe()
    os.write(writer, "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines).encode())
    os.close(writer)
    source = StreamSource(reader, Reader(LAYERS, model="scripted"), ALL)
    results = Results(str(output))
    try:
        resume = Resume(
            str(output), model="scripted", revision=None, seed=1, entries=None, find=lambda number: None
        )
        results.settle(resume.judge, may_be_torn=may_be_torn)
        tally = Tally(before=len(resume.done))
        with Writer(results, tally) as out:
            source.begin(lambda item: not resume.is_done(item), done=resume.done)
            Runner(generator(), source, out, run_seed=1, tally=tally).run()
    finally:
        results.close()
        os.close(reader)
    return tally
