"""Which lengths of the gaps are worth denoising to the end. Plain numbers and a way to score; knows no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod

from dgen.infill.template import Gap

Lengths = tuple[int, ...]

SHORTLIST = 3
"""Combinations of lengths that are denoised to the end."""
WHOLE_GRID = 64
"""Combinations up to this many are all scored; of more, one gap's lengths after the other."""
BEAM = 3
EVERY_LENGTH = 16


def length_options(gap: Gap, most: int) -> tuple[int, ...]:
    """Lengths worth trying: every one up to EVERY_LENGTH, then a quarter more each time, and the most."""
    out = list(range(gap.least, min(max(most, gap.least), EVERY_LENGTH) + 1)) or [gap.least]
    while out[-1] < most:
        out.append(min(out[-1] + max(out[-1] // 4, 1), most))
    return tuple(out)


def shortlist(
    options: Sequence[Sequence[int]], score: Callable[[list[Lengths]], Sequence[float]]
) -> list[Lengths]:
    """The most promising combinations of one length a gap, the best first.

    Args:
        options: the lengths that each gap may have.
        score: of some combinations, higher is better; asked once for each, and not at all where there is one.
    """
    total = prod(map(len, options))
    if total == 1:
        return [tuple(lengths[0] for lengths in options)]
    scores: dict[Lengths, float] = {}

    def best_of(combos: Iterable[Lengths]) -> list[Lengths]:
        new = [combo for combo in dict.fromkeys(combos) if combo not in scores]
        scores.update(zip(new, score(new) if new else (), strict=True))
        return sorted(scores, key=lambda combo: -scores[combo])

    if total <= WHOLE_GRID:
        return best_of(product(*options))[:SHORTLIST]
    best: list[Lengths] = [tuple(lengths[min(1, len(lengths) - 1)] for lengths in options)]
    for _ in range(2):
        for place, lengths in enumerate(options):
            best = best_of(
                (*combo[:place], length, *combo[place + 1 :]) for combo in best for length in lengths
            )[:BEAM]
    return best[:SHORTLIST]
