"""What every vocabulary-wide function of this room shares: the chunk, the softcap, the merge of chunks.

CHUNK is part of the noise's definition: a draw picks a chunk of CHUNK neighbouring ids, then an id in it.
Changing it changes every sampled text.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dgen.jit import constant, jit, tl

CHUNK = 1024
MIN_TEMPERATURE = 1e-10
MAX_VOCAB = 1 << 30
SOFTCAPS = (2.0**-10, 2.0**10)
MASKED = constant(-1e27)  # below every soft-capped logit, and still finite over the smallest temperature
_TILE_ENTRIES = 1 << 24


def shape_of(logits: Tensor, softcap: float | None) -> tuple[int, int]:
    """Rows and vocabulary of a logits tensor; ValueError where it is none, or for a softcap that is no good."""
    check_softcap(softcap)
    if logits.ndim != 2 or not 0 < logits.shape[1] <= MAX_VOCAB:
        raise ValueError(
            f"logits must be [rows, vocab], vocab in [1, {MAX_VOCAB}], got {tuple(logits.shape)}"
        )
    return logits.shape[0], logits.shape[1]


def check_softcap(softcap: float | None) -> None:
    """ValueError for a softcap whose powers the kernels could not hold in fp32."""
    if softcap is not None and not SOFTCAPS[0] <= softcap <= SOFTCAPS[1]:
        raise ValueError(f"softcap must be in [{SOFTCAPS[0]}, {SOFTCAPS[1]}], got {softcap}")


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """fp32 logits, soft-capped: softcap * tanh(logits / softcap).

    Infinities stay as they are: -inf is a mask, not a number to be lifted to -softcap, and +inf is an error
    that must not be hidden at +softcap.
    """
    check_softcap(softcap)
    x = logits.to(torch.float32)
    if softcap is None:
        return x
    return torch.where(x.isinf(), x, torch.tanh(x / softcap) * softcap)


def first_argmax(x: Tensor) -> Tensor:
    """Index of the largest entry of each row, the lowest one among equals: [n, V] -> int64 [n], always in range.

    torch.argmax promises the first of equal maxima; a row with a NaN gets the NaN's index.
    """
    return x.argmax(dim=-1)


def is_bad(x: Tensor) -> Tensor:
    """Rows that define no distribution: a NaN or +inf anywhere, or no finite entry. [n, V] -> bool [n]."""
    return ~x.amax(dim=-1).isfinite()  # amax lets a NaN through


def row_tiles(rows: int, vocab_size: int) -> Iterator[slice]:
    """Slices of rows that bound each vocabulary-wide temporary to about 16M entries."""
    step = max(1, _TILE_ENTRIES // vocab_size)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


@jit
def load_capped(row_ptr, index, mask, softcap, HAS_CAP: tl.constexpr):
    """The Triton form of `capped`: fp32 logits at `index` of one row, -inf where masked off."""
    x = tl.load(row_ptr + index, mask=mask, other=float("-inf")).to(tl.float32)
    return cap_any(x, softcap) if HAS_CAP else x


@jit
def load_raw(row_ptr, index, vocab_size, EVEN: tl.constexpr):
    """fp32 logits at `index` of one row before the softcap; -inf beyond the vocabulary, which EVEN rules out."""
    if EVEN:
        x = tl.load(row_ptr + index)
    else:
        x = tl.load(row_ptr + index, mask=index < vocab_size, other=float("-inf"))
    return x.to(tl.float32)


@jit
def cap_raw(x, reach, softcap, FINITE: tl.constexpr):
    """Soft-capped x, whose largest size is `reach`: the same bits as `load_capped`, at half the cost where it can.

    FINITE puts MASKED in the place of -inf.
    """
    if is_near(reach, softcap):
        x = cap_near(x, softcap)
    else:
        x = cap_any(x, softcap)
        if FINITE:
            x = tl.maximum(x, MASKED, propagate_nan=tl.PropagateNan.ALL)
    return x


@jit
def is_near(size, softcap):
    """Whether `cap_near` holds: a third of `cap_any`'s instructions, which are what limits a pass over bf16 logits."""
    return size < 0.625 * softcap


@jit
def cap_any(x, softcap):
    """softcap * tanh(x / softcap) to about three units in the last place; infinities and NaN pass through."""
    e = tl.exp2(tl.abs(x) * (2.8853900817779268 / softcap))  # overflows to inf, where tanh is 1
    # rsqrt(v * v) is 1 / v in two instructions; a division takes five.
    v = e + 1.0
    far = tl.fma(tl.math.rsqrt(v * v), -2.0 * softcap, softcap)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    far = (far.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    size = tl.abs(x)
    return tl.where(is_near(size, softcap), cap_near(x, softcap), tl.where(size < float("inf"), far, x))


@jit
def cap_near(x, softcap):
    """The same where is_near(|x|): an odd minimax polynomial, whose coefficients take the softcap in."""
    b = 1.0 / (softcap * softcap)
    z = x * x
    # Written as fused multiply-adds, so that no compiler may round one kernel's x otherwise than another's.
    fit = tl.fma(z, -0.0057049864 * (b * b * b * b * b), 0.0206390861 * (b * b * b * b))
    fit = tl.fma(z, fit, -0.0537397154 * (b * b * b))
    fit = tl.fma(z, fit, 0.1333144158 * (b * b))
    fit = tl.fma(z, fit, -0.3333328068 * b)
    return tl.fma(x * z, fit, x)


@jit
def chunk_max(x):
    """Largest entry of a chunk [n], n at least 4; four short chains run where one long one would wait for itself."""
    return tl.max(tl.max(tl.reshape(x, [4, x.shape[0] // 4]), axis=0), axis=0)


@jit
def chunk_sum(x):
    """Sum of a chunk [n], as `chunk_max`."""
    return tl.sum(tl.sum(tl.reshape(x, [4, x.shape[0] // 4]), axis=0), axis=0)


@jit
def chunk_softmax(x, inv_t):
    """Of one chunk x [CHUNK]: the maximum m in raw units, the sums of e^d and d e^d, d = (x - m) / T.

    A chunk without a finite entry has (-inf, 0, 0). One with a NaN or +inf has a NaN sum of e^d.
    """
    top = chunk_max(x)
    # A difference first: the maximum is 0 exactly, however large 1 / T is. Binary exponents save a product.
    d = (x - tl.where(top == float("-inf"), 0.0, top)) * (inv_t * 1.4426950408889634)
    e = tl.exp2(d)
    d = tl.maximum(d, -1e30)  # -inf times 0 is no number
    return top, chunk_sum(e), chunk_sum(d * e) * 0.6931471805599453


@jit
def capped_chunk_softmax(x, reach, inv_t, softcap):
    """`chunk_softmax` of the soft-capped x, `reach` being its largest size: fewer instructions where x is near 0."""
    inv_t = tl.maximum(inv_t, 1e-20)  # capped logits over more than that are all equal; MASKED must not be
    k = inv_t * 1.4426950408889634
    near = is_near(reach, softcap)
    x = cap_raw(x, reach, softcap, True)
    top = chunk_max(x)
    shift = top * k
    if near & (tl.abs(shift) < 65536.0):
        d = tl.fma(x, k, -shift)
        left = tl.fma(top, k, -shift)  # what the rounding of `shift` left in every d, exactly
    else:
        d = (x - top) * k
        left = shift * 0.0
    e = tl.exp2(d)
    total, drift = chunk_sum(e), chunk_sum(d * e)
    back = tl.exp2(-left)
    # Rounding must not lift the sums beyond what is possible: an entropy would come out negative.
    drift = tl.minimum((drift - left * total) * back, 0.0) * 0.6931471805599453
    total = tl.where(near, tl.maximum(total * back, 1.0, propagate_nan=tl.PropagateNan.ALL), total)
    live = top > MASKED
    top = tl.where(live | (top != top), top, float("-inf"))
    return top, tl.where(live, total, 0.0), tl.where(live, drift, 0.0)


@jit
def merge_softmax(top, total, inv_t):
    """Merge chunks [n] into their row: (bad, maximum, each chunk's d, sum of e^d).

    A bad row (a NaN, a +inf, or nothing finite) gets harmless numbers: maximum 0, sum 1.
    """
    row_top = tl.max(top, axis=0)
    bad = (tl.max((total != total).to(tl.int32), axis=0) > 0) | (row_top == float("-inf"))
    row_top = tl.where(bad, 0.0, row_top)
    live = (top > float("-inf")) & (bad == 0)
    d = tl.where(live, tl.maximum((top - row_top) * inv_t, -1e30), float("-inf"))
    row_total = tl.sum(tl.where(live, total * tl.exp(d), 0.0), axis=0)
    return bad, row_top, d, tl.where(bad, 1.0, row_total)


@jit
def merge_drift(total, drift, d):
    """The sum of d e^d of a row, from its chunks' sums and the d of `merge_softmax`."""
    live = d > float("-inf")
    d = tl.where(live, d, 0.0)
    return tl.sum(tl.where(live, (drift + d * total) * tl.exp(d), 0.0), axis=0)


@jit
def first_index(hit, index, otherwise):
    """The lowest `index` [n] where `hit`, or `otherwise`."""
    return tl.min(tl.where(hit, index, otherwise), axis=0)


@jit
def take(values, index, at):
    """values[at] of a register tensor [n] whose entries are numbered by `index`."""
    return tl.sum(tl.where(index == at, values, 0), axis=0)
