"""A denoising step of a whole model: our engine beside transformers' own `generate`, run after run in turns.

Both run the same model object on the same prompts for the same budget, on the same clock: from the end of the
prompt's causal pass to the end of the run, later causal passes left out, over the number of decoder passes.
Draws differ, hence the steps; the time of one step is what compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dgen.bench.clocked import ClockedDenoiser, Passes, clocked
from dgen.bench.measure import Bench
from dgen.bench.report import DGEN, TRANSFORMERS, Figure, Measurement, Run
from dgen.bench.timer import Mark, Timer
from dgen.denoiser.base import Denoiser
from dgen.engine.engine import Engine
from dgen.engine.events import Completion, Finished
from dgen.engine.request import Request
from dgen.errors import DgenError
from dgen.sampler import SamplerKernels

PROMPTS = ("Tell me a story about a brave fox.", "What is 7 plus 5?", "What is the capital of France?")
"""A story, a sum and a question; the built-in checkpoint knows all three."""

_FLOOR_OF = "weights read once, the output matrix a second time, logits once"


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model and what to ask of it.

    Args:
        model: transformers' DiffusionGemmaForBlockDiffusion, as the denoiser holds it.
        denoiser, kernels: what our engine runs on.
        requests: (prompt, request) pairs; the repeat's number is added to each request's seed.
    """

    model: Any
    denoiser: Denoiser
    kernels: SamplerKernels
    requests: Sequence[tuple[str, Request]]


def step_figure(bench: Bench, subject: Subject) -> tuple[Figure, tuple[Run, ...]]:
    """Time a step of both bodies over all prompts and repeats.

    Raises:
        DgenError: our engine failed; a failure of transformers' is written into the figure instead.
    """
    title = f"denoising step, canvas {subject.denoiser.canvas_len}, vocabulary {subject.denoiser.vocab_size}"
    contest = _Contest(bench, subject, title)
    contest.warm_up()
    for repeat in range(bench.repeats):
        contest.round(repeat)
    measurements = tuple(contest.measurement(by) for by in (DGEN, TRANSFORMERS))
    figure = Figure("step", title, measurements, step_bytes(subject.model), _FLOOR_OF)
    return figure, tuple(run for by in (DGEN, TRANSFORMERS) for run in contest.runs[by])


class _Contest:
    """The runs of both bodies so far; transformers' drops out at its first failure."""

    def __init__(self, bench: Bench, subject: Subject, title: str) -> None:
        self._bench, self._subject, self._title = bench, subject, title
        self.runs: dict[str, list[Run]] = {DGEN: [], TRANSFORMERS: []}
        self._peaks: dict[str, int | None] = {}
        self._skipped: str | None = None

    def warm_up(self) -> None:
        """Run the first prompt once with each body."""
        prompt, request = self._subject.requests[0]
        self._run_both((DGEN, TRANSFORMERS), prompt, request, "warm-up")
        self.runs = {by: [] for by in self.runs}

    def round(self, repeat: int) -> None:
        """Run every prompt once with each body, which takes the first turn alternating."""
        for number, (prompt, request) in enumerate(self._subject.requests):
            order = (DGEN, TRANSFORMERS) if (repeat + number) % 2 == 0 else (TRANSFORMERS, DGEN)
            seeded = replace(request, seed=request.seed + repeat)
            self._run_both(order, prompt, seeded, f"{repeat + 1}/{self._bench.repeats}")

    def _run_both(self, order: Sequence[str], prompt: str, request: Request, turn: str) -> None:
        for by in order:
            if by == TRANSFORMERS and self._skipped is not None:
                continue
            self._bench.progress(f"{self._title}: {by} {turn}, {prompt!r}")
            self._bench.timer.reset_peak()
            if by == DGEN:
                self.runs[by].append(run_dgen(self._bench.timer, self._subject, prompt, request))
            else:
                try:
                    run = run_transformers(self._bench.timer, self._subject, prompt, request)
                except (RuntimeError, TypeError, ValueError) as error:  # out of memory is a RuntimeError
                    self._skipped = f"generate failed: {_first_line(error)}"
                    self.runs[by].clear()
                    continue
                self.runs[by].append(run)
            self._peaks[by] = max(self._peaks.get(by) or 0, self._bench.timer.peak_bytes() or 0) or None

    def measurement(self, by: str) -> Measurement:
        """Seconds a step of each run."""
        skipped = self._skipped if by == TRANSFORMERS else None
        if skipped is not None:
            return Measurement(by, skipped=skipped)
        return Measurement(by, tuple(run.denoise / run.steps for run in self.runs[by]), self._peaks.get(by))


def run_dgen(timer: Timer, subject: Subject, prompt: str, request: Request) -> Run:
    """One request through our engine.

    Raises:
        DgenError: the request failed.
    """
    denoiser = ClockedDenoiser(subject.denoiser, timer)
    engine = Engine(denoiser, subject.kernels)
    completion: Completion | None = None
    timer.wait()
    start = timer.mark()
    for event in engine.run([request]):
        if isinstance(event, Finished):
            completion = event.completion
    end = timer.mark()
    timer.wait()
    assert completion is not None, "the engine ended without a Finished event"
    if completion.finish_reason == "error":
        raise DgenError(f"{prompt!r}: {completion.error}", hint=completion.error_hint)
    return _run(DGEN, timer, prompt, request, denoiser.passes, (start, end), len(completion.tokens))


def run_transformers(timer: Timer, subject: Subject, prompt: str, request: Request) -> Run:
    """One request through the model's own `generate`: eager, dynamic cache, asked for what the request asks for."""
    model, device = subject.model, subject.denoiser.device
    ids = torch.tensor([request.prompt_ids], device=device)
    options = generate_options(model, request)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), clocked(model, timer) as passes:
        torch.manual_seed(request.seed)
        timer.wait()
        start = timer.mark()
        output = model.generate(ids, **options)
        end = timer.mark()
        timer.wait()
    new = output.sequences[0, len(request.prompt_ids) :].tolist()[: request.max_tokens]
    ends = [position for position, token_id in enumerate(new) if token_id in request.eos_ids]
    return _run(TRANSFORMERS, timer, prompt, request, passes, (start, end), ends[0] + 1 if ends else len(new))


def generate_options(model: Any, request: Request) -> dict[str, Any]:
    """Arguments of `generate` that ask for what `request` asks for.

    Raises:
        ValueError: transformers can't do that.
    """
    if request.top_k or request.top_p < 1 or request.pins or request.seed_canvas:
        raise ValueError("it has no top-k, top-p, pins or seed canvas")
    sampler = getattr(model.generation_config, "sampler_config", None)
    if sampler is None:
        sampler = model.generation_config._get_default_generation_params()["sampler_config"]
    return {
        "max_new_tokens": request.max_tokens,
        "max_length": None,  # else a checkpoint's own wins over a budget of 256
        "max_denoising_steps": request.steps,
        "sampler_config": replace(sampler, entropy_bound=float(request.entropy_bound)),
        "t_min": request.t_min,
        "t_max": request.t_max,
        "stability_threshold": request.stability,
        "confidence_threshold": float(request.confidence),
        "eos_token_id": sorted(request.eos_ids) or None,
        "cache_implementation": None,
        "return_dict_in_generate": True,
    }


def step_bytes(model: Any) -> int:
    """Bytes that one step of one canvas moves at least: the decoder's weights, the output matrix for the logits and
    again for the self-conditioning, and the fp32 logits once. Every expert counts: a full canvas touches them all."""
    weights = {weight.data_ptr(): weight.nbytes for weight in model.model.decoder.parameters()}
    head = model.lm_head.weight
    text = model.config.get_text_config()
    return sum(weights.values()) + head.nbytes + model.config.canvas_length * text.vocab_size * 4


def _run(
    by: str, timer: Timer, prompt: str, request: Request, passes: Passes, span: tuple[Mark, Mark], tokens: int
) -> Run:
    start, end = span
    prefill, *commits = passes.causal
    committing = sum(timer.seconds(*commit) for commit in commits)
    return Run(
        by=by,
        prompt=prompt,
        seed=request.seed,
        prompt_tokens=len(request.prompt_ids),
        steps=passes.denoising,
        canvases=len(passes.causal),
        tokens=tokens,
        prefill=timer.seconds(start, prefill[1]),
        denoise=timer.seconds(prefill[1], end) - committing,
        commit=committing,
        total=timer.seconds(start, end),
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
