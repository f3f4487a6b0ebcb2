"""What `dgen bench` times, in order: the copy bandwidth, row statistics, the stash, a denoising step.

Knows which figures there are; how each is timed is its own module's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.measure import Bench
from dgen.bench.report import Report, Settings
from dgen.bench.row_stats import row_stats_figures
from dgen.bench.stash import stash_figures
from dgen.bench.steps import Subject, step_figure
from dgen.bench.timer import Progress, Timer

DEFAULT_REPEATS = {"cpu": 3, "cuda": 50}
STEP_REPEATS = 5


def run_suite(
    settings: Settings,
    subject: Subject,
    environment: Mapping[str, Any],
    *,
    free_memory: Callable[[torch.device], int],
    progress: Progress,
) -> Report:
    """Time everything on the subject's device.

    Args:
        settings: canvas and vocab of the sampler's figures; repeats of each, None for this room's defaults.
        subject: the model, whose device and kernels all figures use.
        free_memory: bytes that can still be allocated on a device.

    Raises:
        DgenError: the engine failed, or there is no memory at all. What memory can't hold is skipped, with the reason.
    """
    device = subject.denoiser.device
    timer = Timer(device)
    repeats = settings.repeats or DEFAULT_REPEATS[device.type]
    bench = Bench(timer, repeats, free_memory, progress)
    shape = {"canvas": settings.canvas, "vocab": settings.vocab}
    with torch.inference_mode():
        bandwidth = copy_bandwidth(bench)
        figures = [
            *row_stats_figures(bench, subject.kernels, **shape),
            *stash_figures(bench, subject.kernels, **shape),
        ]
    step, runs = step_figure(Bench(timer, settings.repeats or STEP_REPEATS, free_memory, progress), subject)
    return Report(settings, environment, bandwidth, (*figures, step), runs)
