"""How near a result is to what it should be."""

from __future__ import annotations

import torch

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
"""Relative errors of one kernel: a few roundings of the dtype."""


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want| over all entries, in double precision; NaN where one is."""
    got, want = got.double().cpu(), want.double().cpu()
    assert got.shape == want.shape
    return ((got - want).norm() / want.norm().clamp_min(1e-30)).item()


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float | None = None) -> None:
    """Nearer than the dtype's tolerance, as a whole and in its worst row."""
    limit = TOLERANCE[got.dtype] if tolerance is None else tolerance
    assert distance(got, want) < limit
    rows, wanted = got.double().cpu().flatten(0, -2), want.double().cpu().flatten(0, -2)
    worst = ((rows - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-30)).max().item()
    assert worst < 4 * limit
