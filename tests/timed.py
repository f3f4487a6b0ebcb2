"""A tiny model in an engine and a report of chosen numbers: what the tests of the bench time and compare."""

from __future__ import annotations

import torch
from tiny import RELEASED_EOS, tiny_model

from dgen.bench.report import DGEN, TRANSFORMERS, Bandwidth, Figure, Measurement, Report, Run, Work
from dgen.bench.settings import SHORT, ShortSettings
from dgen.bench.subject import Stand, Subject
from dgen.bench.timer import Timer
from dgen.engine.request import Request
from dgen.sampler import kernels_for

CPU = torch.device("cpu")
PLENTY = 1 << 40


def request(**changes) -> Request:
    settings = {
        "prompt_ids": (2, 40, 50, 60, 70),
        "eos_ids": frozenset(RELEASED_EOS),
        "max_tokens": 16,
        "steps": 6,
        "entropy_bound": 0.1,
        "t_min": 0.4,
        "t_max": 0.8,
        "stability": 1,
        "confidence": 0.005,
        "seed": 1,
    }
    return Request(**{**settings, **changes})


def tiny_stand(*, num_slots: int = 2, **model) -> Stand:
    """A tiny random model in an engine of two slots; `model` as in `tiny_model`."""
    subject = Subject(tiny_model(seed=3, **model)[0], "tiny")
    return Stand.make(
        subject,
        kernels_for("torch", CPU),
        Timer(CPU),
        denoiser="reference",
        graphs=True,
        num_slots=num_slots,
        max_context=256,
    )


def report(
    *, ours: tuple[float, ...] = (0.002, 0.001, 0.003), theirs: tuple[float, ...] = (0.004,), **settings
) -> Report:
    """A report of three figures and a run; `settings` change its settings."""
    asked = {
        "canvas": 8,
        "vocab": 512,
        "repeats": 3,
        "device": "cpu",
        "kernels": "torch",
        "denoiser": "reference",
        "model": "builtin",
        "revision": None,
        "dtype": "float32",
        "model_canvas": 64,
    }
    figures = (
        Figure(
            "row_stats.float32",
            "row statistics",
            (Measurement(DGEN, ours, 5_000_000), Measurement(TRANSFORMERS, theirs, 6_000_000)),
            (Work("logits read once", 1_000_000),),
        ),
        Figure(
            "step.b1.p64",
            "step",
            (Measurement(DGEN, (0.01,)), Measurement(TRANSFORMERS, skipped="generate failed: no")),
            (Work("head", 1_000_000, 2e6), Work("sampler", 2_000_000, 1e6)),
        ),
        Figure(
            "generate.b2.p64",
            "generate",
            (Measurement(DGEN, (0.5,)),),
            tokens=200,
            requests=2,
        ),
    )
    run = Run(DGEN, 2, 64, 6, 2, 200, 0.1, 0.2, 0.2, 0.5)
    environment = {"date": "2030-01-01", "cpu": "A CPU", "threads": 2, "dgen": "0.1", "torch": "2.11"}
    return Report(
        SHORT,
        ShortSettings(**{**asked, **settings}),
        environment,
        Bandwidth(2_000_000, (0.0002, 0.0001, 0.0003)),
        figures,
        1e10,
        (run,),
    )
