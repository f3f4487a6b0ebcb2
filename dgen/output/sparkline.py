"""A row of numbers as a row of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], columns: int) -> str:
    """One block a value, from 0 to the largest; where there are more than `columns`, the mean of neighbours."""
    if len(values) > columns:
        cuts = [len(values) * column // columns for column in range(columns + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    top = max(values, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[max(0, min(last, int(value / top * len(_BLOCKS))))] for value in values)
