"""Whole requests, through dgen's engine and through transformers' own `generate`, on one clock.

Both run the same model object on the same prompts for the same number of steps; draws differ, times compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dgen.bench.clocked import Passes, clocked
from dgen.bench.report import DGEN, TRANSFORMERS, Run
from dgen.bench.subject import Stand, Subject, raise_failure
from dgen.bench.timer import Mark, Timer
from dgen.engine.events import Completion, Finished
from dgen.engine.request import Request

FAILURES = (RuntimeError, TypeError, ValueError)
"""What transformers raises when it can't; out of memory is a RuntimeError."""


def run_dgen(stand: Stand, requests: Sequence[Request], *, by: str = DGEN) -> Run:
    """The requests, all at a time, through our engine.

    Raises:
        DgenError: a request failed.
    """
    timer, passes = stand.timer, Passes()
    stand.denoiser.passes = passes
    completions: list[Completion] = []
    timer.wait()
    start = timer.mark()
    for event in stand.engine.run(requests):
        raise_failure(event)
        if isinstance(event, Finished):
            completions.append(event.completion)
    end = timer.mark()
    timer.wait()
    tokens = sum(len(completion.tokens) for completion in completions)
    steps = sum(completions[0].steps)
    return _run(by, timer, requests, passes, (start, end), steps=steps, tokens=tokens, prefills=len(requests))


def run_transformers(subject: Subject, timer: Timer, requests: Sequence[Request]) -> tuple[Run, Passes]:
    """The requests as one batch of `generate`: eager, dynamic cache, asked for what the first request asks for.

    Raises:
        FAILURES: it failed.
    """
    model, device = subject.model, subject.device
    ids = torch.tensor([request.prompt_ids for request in requests], device=device)
    options = generate_options(model, requests[0])
    with torch.random.fork_rng([device] if device.type == "cuda" else []), clocked(model, timer) as passes:
        torch.manual_seed(requests[0].seed)
        timer.wait()
        start = timer.mark()
        output = model.generate(ids, **options)
        end = timer.mark()
        timer.wait()
    new = output.sequences[:, ids.shape[1] :][:, : requests[0].max_tokens]
    run = _run(
        TRANSFORMERS,
        timer,
        requests,
        passes,
        (start, end),
        steps=len(passes.denoising),
        tokens=new.numel(),
        prefills=1,
    )
    return run, passes


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


def first_line(error: Exception) -> str:
    """Of what it says, else its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _run(
    by: str,
    timer: Timer,
    requests: Sequence[Request],
    passes: Passes,
    span: tuple[Mark, Mark],
    *,
    steps: int,
    tokens: int,
    prefills: int,
) -> Run:
    start, end = span
    commits = passes.causal[prefills:]
    read = passes.causal[prefills - 1][1]
    committing = sum(timer.seconds(*commit) for commit in commits)
    return Run(
        by=by,
        batch=len(requests),
        prompt_tokens=len(requests[0].prompt_ids),
        steps=steps,
        canvases=1 + len(commits),
        tokens=tokens,
        prefill=timer.seconds(start, read),
        denoise=timer.seconds(read, end) - committing,
        commit=committing,
        total=timer.seconds(start, end),
    )
