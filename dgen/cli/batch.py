"""`dgen generate --input`: a file of prompts in, a record a line out.

Everything that can be wrong with the command, the input and the output is said before the checkpoint is loaded.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dgen.batch.item import Item, Reader
from dgen.batch.places import descriptor_of
from dgen.batch.results import Results
from dgen.batch.resume import Resume, may_be_torn
from dgen.batch.runner import Runner
from dgen.batch.source import Entry, FileSource, Problem, Shard, StreamSource, is_stream
from dgen.batch.tally import Tally
from dgen.batch.writer import Writer
from dgen.checkpoint import target
from dgen.checkpoint.preview import Preview, preview
from dgen.cli.account import setup_lines
from dgen.cli.batch_progress import BatchProgress, duration
from dgen.cli.interruption import Interruption
from dgen.cli.progress import Progress
from dgen.cli.sink import ClosedPipe, Sink
from dgen.cli.threads import settle_threads
from dgen.errors import UsageError
from dgen.settings import Layer, Resolved, resolve

if TYPE_CHECKING:
    from dgen.generator import Generator

FAILED_LINES = 4
"""Exit code of a batch that went through with failed lines."""
BATCH_SLOTS = 8
"""Requests at a time where neither the command nor the memory says otherwise."""
_MAX_RUN_SEED = 2**32


@dataclass(frozen=True, slots=True)
class _Asked:
    """Where to read and write, and what the command line says about it."""

    source: str
    output: str
    ordered: bool
    overwrite: bool
    shard: Shard
    system: str | None
    raw: bool


def shard_of(text: str | None) -> Shard:
    """Reads `2/4`: the second of four.

    Raises:
        UsageError: anything else.
    """
    if text is None:
        return Shard()
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(
            f"--shard must be like 2/4, not '{text}'", hint="1/4 is the first of four shards, 4/4 the last."
        )
    return Shard(int(match[1]), int(match[2]))


def run_batch(
    sink: Sink,
    layers: Sequence[Layer],
    *,
    source: str,
    output: str | None,
    ordered: bool,
    overwrite: bool,
    shard: str | None,
    system: str | None,
    raw: bool,
    verbose: bool,
) -> int:
    """Run the batch that the command line asks for; returns the exit code.

    Args:
        source, output: paths; `-` is stdin and stdout.
        system, raw: for lines that give none.

    Raises:
        UsageError: the input or the output can't be used as given; bad lines have been told by then.
        CheckpointError, OutputError: as elsewhere.
    """
    if output is None:
        raise UsageError("--input needs --output", hint="Add --output FILE.jsonl; - writes to stdout.")
    asked = _Asked(source, output, ordered, overwrite, shard_of(shard), system, raw)
    return _prepare(sink, layers, asked, verbose=verbose)


def _prepare(sink: Sink, layers: Sequence[Layer], options: _Asked, *, verbose: bool) -> int:
    asked = resolve(layers, partial=True).settings
    known = preview(asked.model, revision=asked.revision, offline=asked.offline)
    own = [Layer("checkpoint", known.defaults), *layers]
    run = resolve(own)
    reader = Reader(own, options.system, options.raw, model=run.settings.model)
    source: FileSource | StreamSource
    entries: dict[str, Entry] | None = None
    if is_stream(options.source):
        source = StreamSource(_descriptor(options.source), reader, options.shard)
    else:
        source = FileSource(options.source, reader, options.shard)
        with Progress(sink) as progress:
            progress.update("checking the input")
            entries = _checked(source, sink, progress, options.source)
    target.check_names(run.settings.device, run.settings.dtype)
    if descriptor_of(options.output) == 1:
        sink.check()
    with Results(options.output, overwrite=options.overwrite) as results:
        _check_apart(options.source, results)
        if options.ordered and not results.resumable:
            raise UsageError(
                f"'{options.output}' can't be put in order",
                hint="Give a regular file, or leave --ordered out.",
            )
        with Progress(sink) as progress:
            progress.update("reading the output")
            resume = _resume(results, source, entries, run, known, options)
            progress.pause()
            tally = Tally(total=source.total, before=len(resume.done))
            if resume.done or resume.failed:
                again = f", {resume.failed} that failed to run again" if resume.failed else ""
                sink.note(f"'{options.output}': {len(resume.done)} done before{again}")
            if tally.left == 0:
                return _finish(sink, results, tally, options)
            generator = _load(sink, progress, layers, resume, verbose=verbose)
        results.begin()
        return _run(sink, generator, source, results, resume, tally, options)


def _check_apart(source: str, results: Results) -> None:
    """Refuse an output that is the input, whatever names or redirections lead to it."""
    try:
        given = os.fstat(0) if source == "-" else os.stat(os.path.expanduser(source))
    except OSError:
        return
    if results.resumable and os.path.samestat(given, os.fstat(results.fileno())):
        raise UsageError("--input and --output are the same file", hint="Give another --output.")


def _descriptor(path: str) -> int:
    try:
        if path == "-":
            os.fstat(0)
            return 0
        return os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"can't read the input '{path}': {error.strerror}", hint="Check the path.") from None


def _checked(source: FileSource, sink: Sink, progress: Progress, path: str) -> dict[str, Entry]:
    """The input's entries, if every line is good; each bad one is told, and each hint once."""
    bad, hinted = 0, set[str]()

    def tell(problem: Problem) -> None:
        nonlocal bad
        bad += 1
        progress.pause()
        hint = "" if problem.hint in hinted else problem.hint
        hinted.add(problem.hint)
        sink.error(UsageError(f"line {problem.number}: {problem.reason}", hint=hint))

    entries = source.check(tell)
    if bad:
        raise UsageError(
            f"{bad} {'line' if bad == 1 else 'lines'} of '{path}' can't be used; nothing was run",
            hint="Correct or remove what is named above.",
        )
    return entries


def _resume(
    results: Results,
    source: FileSource | StreamSource,
    entries: dict[str, Entry] | None,
    run: Resolved,
    known: Preview,
    options: _Asked,
) -> Resume:
    resume = Resume(
        options.output,
        model=run.settings.model,
        revision=known.revision,
        seed=run.settings.seed,
        entries=entries,
        find=source.find if isinstance(source, FileSource) else lambda number: None,
        dtype=None if run.settings.dtype == "auto" else target.DTYPES[run.settings.dtype],
    )
    results.settle(resume.judge, may_be_torn=may_be_torn)
    if resume.seed is None:
        drawn = resume.drawn_seed
        resume.seed = secrets.randbelow(_MAX_RUN_SEED) if drawn is None else drawn
    return resume


def _load(
    sink: Sink, progress: Progress, layers: Sequence[Layer], resume: Resume, *, verbose: bool
) -> Generator:
    progress.update("importing torch and transformers")
    from dgen.generator import from_layers

    progress.update("loading the checkpoint")
    generator = from_layers(layers, progress=progress.amount, num_slots=BATCH_SLOTS)
    threads = settle_threads(generator.checkpoint.model)
    progress.update("compiling kernels, capturing graphs")
    prepared: list[str] = []
    generator.engine.prepare(prepared.append)
    progress.pause()
    if verbose:
        for line in prepared:
            sink.detail(line)
        for line in setup_lines(generator, generator.resolved, threads):
            sink.detail(line)
        sink.detail(f"slots {generator.denoiser.num_slots}, the run's seed {resume.seed}")
    for difference in resume.check_runtime(generator.runtime):
        sink.warn(f"the records so far were made elsewhere: {difference}; tokens may differ by rounding")
    return generator


def _run(
    sink: Sink,
    generator: Generator,
    source: FileSource | StreamSource,
    results: Results,
    resume: Resume,
    tally: Tally,
    options: _Asked,
) -> int:
    assert resume.seed is not None
    tally.started = time.perf_counter()
    try:
        with BatchProgress(sink, tally) as progress, Writer(results, tally, progress.warn) as writer:
            runner = Runner(
                generator,
                source,
                writer,
                run_seed=resume.seed,
                tally=tally,
                tell=progress.warn,
                show=progress.show,
            )
            with Interruption(runner.interrupt) as interruption:
                if isinstance(source, FileSource):
                    source.begin(partial(_is_left, resume))
                    refused = runner.check_prompts(partial(source.take, wait=True))
                    source.begin(lambda item: item.number not in refused and _is_left(resume, item))
                else:
                    source.begin(partial(_is_left, resume), done=resume.done)
                runner.run()
    except BrokenPipeError:
        raise ClosedPipe from None
    except Exception:
        _say_how_to_resume(sink, results, options)
        raise
    if runner.interrupted:
        sink.note(_summary(tally))
        _say_how_to_resume(sink, results, options)
        return interruption.exit_code
    if tally.left:
        raise UsageError(
            f"'{options.source}' lost {tally.left} of its lines meanwhile", hint="Run the command again."
        )
    return _finish(sink, results, tally, options)


def _is_left(resume: Resume, item: Item) -> bool:
    return not resume.is_done(item)


def _finish(sink: Sink, results: Results, tally: Tally, options: _Asked) -> int:
    if options.ordered:
        results.sort()
    sink.note(_summary(tally))
    if not tally.failed:
        return 0
    sink.warn(
        f"{tally.failed} {'line' if tally.failed == 1 else 'lines'} failed: their records have an error, "
        "and the same command runs them again"
    )
    return FAILED_LINES


def _summary(tally: Tally) -> str:
    parts = [f"{tally.before + tally.done} done" + ("" if tally.total is None else f" of {tally.total}")]
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    if tally.canvases:
        parts.append(f"{tally.tokens} tokens in {duration(tally.seconds)}")
        parts.append(f"{tally.tokens_per_second:.0f} tokens/s")
        parts.append(f"{tally.steps_per_canvas:.1f} steps a canvas")
    return " · ".join(parts)


def _say_how_to_resume(sink: Sink, results: Results, options: _Asked) -> None:
    if not results.resumable:
        return
    # A second --overwrite would throw away what is done.
    command = shlex.join(["dgen", *(word for word in sys.argv[1:] if word != "--overwrite")])
    again = " (with the same input)" if options.source == "-" else ""
    sink.note(f"To resume{again}: {command}")
