"""Quantiles of raw samples: standard library alone, so that reports can be read where torch is not."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of a non-empty sample lies, interpolated linearly between neighbours."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
