"""What `dgen bench generate` times: whole requests of a fixed number of steps, through both bodies in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dgen.bench.floors import Sizes
from dgen.bench.measure import Bench
from dgen.bench.report import DGEN, TRANSFORMERS, Figure, Measurement, Run, Work, by_body
from dgen.bench.runs import FAILURES, first_line, run_dgen, run_transformers
from dgen.bench.subject import Stand, with_logprobs

PARTS = {"prefill": "prefill", "step": "step", "commit": "commit of a canvas"}
"""Parts of a run in their order, for people."""


@dataclass(slots=True)
class GenerateSuite:
    """Figures of a stand, one batch and prompt length after the other.

    Args:
        tokens, steps: of each request, the steps a canvas.
        logprobs: adds a body of ours that keeps so many log-probabilities; None adds none.
        peer: whether transformers is timed too.

    Attributes:
        runs: every timed run.
    """

    bench: Bench
    stand: Stand
    tokens: int
    steps: int
    logprobs: int | None
    peer: bool
    runs: list[Run] = field(default_factory=list)

    def figures(self, batches: tuple[int, ...], prompts: tuple[int, ...]) -> Iterator[Figure]:
        """Every combination.

        Raises:
            DgenError: our engine failed; a failure of transformers' is written into its measurement instead.
        """
        for prompt in prompts:
            for batch in batches:
                yield from self._cell(batch, prompt)

    def _cell(self, batch: int, prompt: int) -> Iterator[Figure]:
        subject, canvas_len = self.stand.subject, self.stand.subject.canvas_len
        requests = subject.requests(batch=batch, prompt=prompt, tokens=self.tokens, steps=self.steps)
        bodies: dict[str, Callable[[], Run]] = {DGEN: lambda: run_dgen(self.stand, requests)}
        if self.logprobs is not None:
            name, kept = f"{DGEN}, logprobs {self.logprobs}", with_logprobs(requests, self.logprobs)
            bodies[name] = lambda: run_dgen(self.stand, kept, by=name)
        if self.peer:
            bodies[TRANSFORMERS] = lambda: run_transformers(subject, self.bench.timer, requests)[0]
        title = f"generate {self.tokens} tokens, {self.steps} steps a canvas, batch {batch}, prompt {prompt}"
        turns = _Turns(self.bench, title, bodies)
        turns.take()
        self.runs += turns.runs
        sizes, commits = Sizes.of(subject.model), -(-self.tokens // canvas_len) - 1
        prefill = (sizes.causal_pass(batch=1, tokens=prompt, context=0).times(batch),)
        step = tuple(sizes.step(batch=batch, context=prompt).values())
        commit = (sizes.causal_pass(batch=batch, tokens=canvas_len, context=prompt),)
        whole = (
            *prefill,
            *(work.times((commits + 1) * self.steps) for work in step),
            *(work.times(commits) for work in commit),
        )
        key = f"generate.b{batch}.p{prompt}"
        yield Figure(
            key, title, turns.measurements(lambda run: run.total), whole,
            tokens=batch * self.tokens, requests=batch,
        )  # fmt: skip
        parts: list[tuple[str, Callable[[Run], float], tuple[Work, ...]]] = [
            ("prefill", lambda run: run.prefill, prefill),
            ("step", lambda run: run.denoise / run.steps, step),
        ]
        if commits:
            parts.append(("commit", lambda run: run.commit / (run.canvases - 1), commit))
        for name, seconds, floor in parts:
            yield Figure(
                f"{key}.{name}",
                f"{title}: {PARTS[name]}",
                turns.measurements(seconds),
                floor,
                part=PARTS[name],
            )


class _Turns:
    """Runs of all bodies, which take the first turn alternating; transformers drops out at its first failure."""

    def __init__(self, bench: Bench, title: str, bodies: Mapping[str, Callable[[], Run]]) -> None:
        self._bench, self._title, self._bodies = bench, title, bodies
        self.runs: list[Run] = []
        self._peaks: dict[str, int | None] = {}
        self._skipped: dict[str, str] = {}

    def take(self) -> None:
        """Run each body once untimed, then as often as the bench repeats."""
        for by in self._bodies:
            self._run(by, "warm-up")
        self.runs.clear()
        for repeat in range(self._bench.repeats):
            for by in list(self._bodies)[:: 1 if repeat % 2 == 0 else -1]:
                self._run(by, f"{repeat + 1}/{self._bench.repeats}")

    def _run(self, by: str, turn: str) -> None:
        if by in self._skipped:
            return
        self._bench.progress(f"{self._title}: {by} {turn}")
        self._bench.timer.reset_peak()
        try:
            self.runs.append(self._bodies[by]())
        except FAILURES as error:
            if by != TRANSFORMERS:
                raise
            self._skipped[by] = f"generate failed: {first_line(error)}"
            self.runs = [run for run in self.runs if run.by != by]
            return
        self._peaks[by] = max(self._peaks.get(by) or 0, self._bench.timer.peak_bytes() or 0) or None

    def measurements(self, seconds: Callable[[Run], float]) -> tuple[Measurement, ...]:
        """One for each body: `seconds` of each of its runs."""
        runs = by_body(self.runs)
        return tuple(
            Measurement(
                by,
                tuple(seconds(run) for run in runs.get(by, [])),
                self._peaks.get(by) if by not in self._skipped else None,
                self._skipped.get(by),
            )
            for by in self._bodies
        )
