"""`dgen generate --input`: a file of prompts in, a record a line out.

Everything that can be wrong with the command, the input and the output is said before the checkpoint is loaded.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
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
from dgen.batch.source import Entry, FileSource, Shard, StreamSource
from dgen.batch.tally import Tally
from dgen.batch.writer import Writer
from dgen.checkpoint import target
from dgen.checkpoint.preview import Preview, preview
from dgen.cli.account import setup_lines, tell_model
from dgen.cli.batch_account import say_done, say_how_to_resume, say_nothing_was_run, summary
from dgen.cli.batch_input import check_not_empty, open_input, shard_of
from dgen.cli.batch_progress import BatchProgress
from dgen.cli.interruption import Interruption, Terminated
from dgen.cli.loading import load_generator
from dgen.cli.progress import Progress
from dgen.cli.sink import ClosedPipe, Sink
from dgen.errors import UsageError
from dgen.settings import Layer, Resolved, resolve

if TYPE_CHECKING:
    from dgen.generator import Generator

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


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch that can be run; no generator where nothing is left to run."""

    source: FileSource | StreamSource
    results: Results
    resume: Resume
    tally: Tally
    generator: Generator | None


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
    if raw and system is not None:
        raise UsageError(
            "a system text needs the chat template",
            hint="Leave --raw or --system out; a line may have either for itself.",
        )
    asked = _Asked(source, output, ordered, overwrite, shard_of(shard), system, raw)
    with contextlib.ExitStack() as files:
        try:
            ready = _prepare(sink, layers, asked, files, verbose=verbose)
        except (KeyboardInterrupt, Terminated) as ended:
            say_nothing_was_run(sink, source)
            return ended.exit_code if isinstance(ended, Terminated) else Interruption.exit_code
        if ready.generator is None:
            return _finish(sink, ready, asked)
        ready.results.begin()
        return _run(sink, ready, ready.generator, asked)


def _prepare(
    sink: Sink,
    layers: Sequence[Layer],
    options: _Asked,
    files: contextlib.ExitStack,
    *,
    verbose: bool,
) -> _Ready:
    """All that comes before the run; what is opened goes into `files`."""
    asked = resolve(layers, partial=True).settings
    known = preview(asked.model, revision=asked.revision, offline=asked.offline)
    own = [Layer("checkpoint", known.defaults), *layers]
    run = resolve(own)
    reader = Reader(own, options.system, options.raw, run.settings.model)
    source, entries = open_input(sink, options.source, reader, options.shard)
    target.check_names(run.settings.device, run.settings.dtype)
    if descriptor_of(options.output) == 1:
        sink.check()
    results = files.enter_context(Results(options.output, overwrite=options.overwrite))
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
        generator = None
        if tally.left != 0:
            generator = _load(sink, progress, layers, resume, verbose=verbose)
    return _Ready(source, results, resume, tally, generator)


def _check_apart(source: str, results: Results) -> None:
    """Refuse an output that is the input, whatever names or redirections lead to it."""
    try:
        given = os.fstat(0) if source == "-" else os.stat(os.path.expanduser(source))
    except OSError:
        return
    # A terminal or a device may well be both.
    if stat.S_ISREG(given.st_mode) and os.path.samestat(given, os.fstat(results.fileno())):
        raise UsageError("--input and --output are the same file", hint="Give another --output.")


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
    loaded = load_generator(progress, layers, num_slots=BATCH_SLOTS)
    generator = loaded.generator
    progress.pause()
    tell_model(sink, generator.resolved)
    prepared = loaded.prepare(progress)
    progress.pause()
    if verbose:
        for line in [*setup_lines(loaded, generator.resolved), *prepared]:
            sink.detail(line)
        sink.detail(f"slots {generator.denoiser.num_slots}, the run's seed {resume.seed}")
    for difference in resume.check_runtime(generator.runtime):
        sink.warn(f"the records so far were made elsewhere: {difference}; tokens may differ by rounding")
    return generator


def _run(sink: Sink, ready: _Ready, generator: Generator, options: _Asked) -> int:
    source, resume, tally = ready.source, ready.resume, ready.tally
    assert resume.seed is not None
    tally.started = time.perf_counter()
    try:
        with (
            BatchProgress(sink, tally) as progress,
            Writer(ready.results, tally, progress.warn) as writer,
        ):
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
        _say_how_to_resume(sink, ready, options)
        raise
    if runner.interrupted:
        sink.note(summary(tally))
        _say_how_to_resume(sink, ready, options)
        return interruption.exit_code
    if tally.left:
        raise UsageError(
            f"'{options.source}' lost {tally.left} of its lines meanwhile", hint="Run the command again."
        )
    check_not_empty(source, options.source)
    return _finish(sink, ready, options)


def _is_left(resume: Resume, item: Item) -> bool:
    return not resume.is_done(item)


def _finish(sink: Sink, ready: _Ready, options: _Asked) -> int:
    if options.ordered:
        ready.results.sort()
    return say_done(sink, ready.tally)


def _say_how_to_resume(sink: Sink, ready: _Ready, options: _Asked) -> None:
    if ready.results.resumable:
        say_how_to_resume(sink, options.source)
