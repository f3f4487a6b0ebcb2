"""A request, a tiny model and a report of chosen numbers: what the tests of the bench time and compare."""

from __future__ import annotations

import torch
from dgen.bench.steps import Subject
from tiny import RELEASED_EOS, tiny_model

from dgen.bench.report import (
    DGEN,
    TRANSFORMERS,
    Bandwidth,
    Figure,
    Measurement,
    Report,
    Run,
    Settings,
)
from dgen.denoiser.reference import ReferenceDenoiser
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


def tiny_subject() -> Subject:
    """Two short requests of a tiny model."""
    model, _ = tiny_model(seed=3)
    requests = (("first", request()), ("second", request(prompt_ids=(2, 80, 90), seed=2)))
    return Subject(model, ReferenceDenoiser(model), kernels_for("torch", CPU), requests)


def report(
    *, ours: tuple[float, ...] = (0.002, 0.001, 0.003), theirs: tuple[float, ...] = (0.004,), **settings
) -> Report:
    """A report of two figures and two runs; `settings` change its Settings."""
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
            1_000_000,
            "logits read once",
        ),
        Figure(
            "step",
            "denoising step",
            (Measurement(DGEN, (0.01,)), Measurement(TRANSFORMERS, skipped="generate failed: no")),
        ),
    )
    run = Run(DGEN, "Hello?", 1, 5, 6, 2, 12, 0.1, 0.5, 0.2, 0.8)
    environment = {"date": "2030-01-01", "cpu": "A CPU", "threads": 2, "dgen": "0.1", "torch": "2.11"}
    return Report(
        Settings(**{**asked, **settings}),
        environment,
        Bandwidth(2_000_000, (0.0002, 0.0001, 0.0003)),
        figures,
        (run,),
    )
