"""What both kinds of attention share of the softmax: who sees whom, a usual reference, and the merge of splits.

Exponentials are taken in base 2, relative to a reference. Keeping that at a row's largest score costs nearly as much as
the products that it stands between; so a usual one is tried first, and the sums tell whether it served.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from torch import Tensor

from dgen.jit import constant, early, jit, take_turn, tl, triton

NO_WINDOW = 2**30
"""A window that sees every position."""
USUAL = constant(20.0)
"""The reference that exponentials are first tried with, in base 2: fp32 and bf16 bear scores from far below to 120."""
_LEAST_SUM, _LARGEST_SUM = constant(2.0**-80), constant(2.0**100)


@jit
def mask_prefix(s, first, i, i_last, length, window, KEYS: tl.constexpr, SLIDES: tl.constexpr):
    """Scores [rows, KEYS] of the positions from `first` on; those that a row doesn't see become -1e30.

    i [rows] are the rows' places in their pass, from i_first to i_last. With SLIDES each has a window of its own, else
    all have that of the pass's first row. Only blocks at an edge take the time.
    """
    if (first + KEYS > length) | (first <= length + (i_last if SLIDES else 0) - window):
        p = (first + tl.arange(0, KEYS))[None, :]
        seen = (p < length) & (p > length - window)
        if SLIDES:
            seen = seen & (p > (length - window + i)[:, None])
        s = tl.where(seen, s, -1.0e30)
    return s


@jit
def mask_pass(s, first, i, i_first, i_last, n, window, KEYS: tl.constexpr, CAUSAL: tl.constexpr):
    """As `mask_prefix`, for the pass's own rows from `first` on, up to n."""
    if CAUSAL:
        if (first + KEYS > i_first + 1) | (first <= i_last - window):
            back = i[:, None] - (first + tl.arange(0, KEYS))[None, :]
            s = tl.where((back >= 0) & (back < window), s, -1.0e30)
    elif first + KEYS > n:
        s = tl.where((first + tl.arange(0, KEYS) < n)[None, :], s, -1.0e30)
    return s


@jit
def all_bounded(total):
    """Whether sums of 2^(score - USUAL) say that no score was too large, and that each row has some that count.

    What was lost below 2^-126 is nothing beside a sum of 2^-80. Below 2^100 values of up to 2^27 can still be weighted;
    the model's are normed. A NaN is not bounded.
    """
    return tl.min(((total > _LEAST_SUM) & (total < _LARGEST_SUM)).to(tl.int32), axis=0) != 0


@jit
def _merge_splits_kernel(
    part_ptr, part_stats_ptr, out_ptr, SPLITS: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A row without a key in some split has a weight of exactly 0 there: its reference is that of masked scores."""
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D_BLOCK)
    split = tl.arange(0, SPLITS)
    at = (row * SPLITS + split)[:, None] * D + d[None, :]
    parts = tl.load(part_ptr + at, mask=(d < D)[None, :], other=0.0)
    top = tl.load(part_stats_ptr + (row * SPLITS + split) * 2)
    total = tl.load(part_stats_ptr + (row * SPLITS + split) * 2 + 1)
    weight = tl.exp2(top - tl.max(top, axis=0))
    o = tl.sum(parts * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out_ptr + row * D + d, o.to(out_ptr.dtype.element_ty), mask=d < D)


def merge_splits(parts: Tensor, stats: Tensor, out: Tensor, *, splits: int, width: int) -> None:
    """Merge the splits of each row and head: parts fp32 [rows * q heads, splits, D], stats [..., splits, 2] -> out.

    stats holds, in base 2, each split's reference and its sum of exponentials relative to that.
    """
    _merge_splits_kernel[(out.numel() // width,)](
        parts, stats, out, SPLITS=splits, D=width, D_BLOCK=triton.next_power_of_2(width), num_warps=2,
        **early(out.device),
    )  # fmt: skip
