"""Which figures each bench has, in order, and the report that they become; how each is timed is its own module's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.chain import product_rate
from dgen.bench.generate_suite import GenerateSuite
from dgen.bench.measure import Bench
from dgen.bench.report import Bandwidth, Report
from dgen.bench.row_stats import row_stats_figures
from dgen.bench.settings import GENERATE, SHORT, STEP, GenerateSettings, ShortSettings, StepSettings
from dgen.bench.stash import stash_figures
from dgen.bench.step_suite import StepSuite
from dgen.bench.subject import Stand

TRANSFORMERS = "transformers"
SHORT_STEPS = 8
"""Steps a canvas of the short form's requests."""
_FEW = {"cpu": 3, "cuda": 5}  # runs of whole requests


def run_step(settings: StepSettings, bench: Bench, stand: Stand, environment: Mapping[str, Any]) -> Report:
    """Every batch behind every prompt; errors as in `StepSuite.figures`."""
    bandwidth, products = _yardsticks(bench)
    suite = StepSuite(bench, stand, settings.peer == TRANSFORMERS)
    figures = tuple(suite.figures(settings.batches, settings.prompts))
    facts = {**_facts(stand), "cells": suite.cells}
    return Report(STEP, settings, environment, bandwidth, figures, products, facts=facts)


def run_generate(
    settings: GenerateSettings, bench: Bench, stand: Stand, environment: Mapping[str, Any]
) -> Report:
    """Every batch behind every prompt; errors as in `GenerateSuite.figures`."""
    bandwidth, products = _yardsticks(bench)
    suite = GenerateSuite(
        bench, stand, settings.tokens, settings.steps, settings.logprobs, settings.peer == TRANSFORMERS
    )
    figures = tuple(suite.figures(settings.batches, settings.prompts))
    return Report(
        GENERATE, settings, environment, bandwidth, figures, products, tuple(suite.runs), _facts(stand)
    )


def run_short(settings: ShortSettings, bench: Bench, stand: Stand, environment: Mapping[str, Any]) -> Report:
    """The sampler on logits of the size asked for, then a step and a request of two canvases, beside transformers.

    Raises:
        DgenError: the engine failed, or there is no memory at all. What memory can't hold is skipped, with the reason.
    """
    shape = {"canvas": settings.canvas, "vocab": settings.vocab}
    bandwidth, products = _yardsticks(bench)
    with torch.inference_mode():
        figures = [
            *row_stats_figures(bench, stand.kernels, **shape),
            *stash_figures(bench, stand.kernels, **shape),
        ]
    prompts = (stand.subject.canvas_len,)
    step = StepSuite(bench, stand, peer=True, split=False)
    figures += step.figures((1,), prompts)
    few = Bench.on(
        bench.device,
        settings.repeats or _FEW[bench.device.type],
        bench.free_memory,
        bench.progress,
    )
    tokens = 2 * stand.subject.canvas_len
    generate = GenerateSuite(few, stand, tokens, SHORT_STEPS, None, peer=True)
    figures += generate.figures((1,), prompts)
    facts = {**_facts(stand), "cells": step.cells}
    return Report(
        SHORT, settings, environment, bandwidth, tuple(figures), products, tuple(generate.runs), facts
    )


def _yardsticks(bench: Bench) -> tuple[Bandwidth, float]:
    with torch.inference_mode():
        return copy_bandwidth(bench), product_rate(bench)


def _facts(stand: Stand) -> dict[str, Any]:
    return {
        "weight_bytes": stand.subject.weight_bytes,
        "ready_seconds": stand.ready,
        "captures": list(stand.told),
    }
