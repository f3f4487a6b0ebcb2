"""What every vocabulary-wide function of this room shares: the chunk, the softcap, the merge of chunks.

CHUNK is part of the noise's definition: a draw picks a chunk of CHUNK neighbouring ids, then an id in it.
Changing it changes every sampled text.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dgen.sampler.jit import jit, tl

CHUNK = 1024
MIN_TEMPERATURE = 1e-10
MAX_VOCAB = 1 << 30
_TILE_ENTRIES = 1 << 24


def shape_of(logits: Tensor) -> tuple[int, int]:
    """Rows and vocabulary of a logits tensor; ValueError where it is none."""
    if logits.ndim != 2 or not 0 < logits.shape[1] <= MAX_VOCAB:
        raise ValueError(
            f"logits must be [rows, vocab], vocab in [1, {MAX_VOCAB}], got {tuple(logits.shape)}"
        )
    return logits.shape[0], logits.shape[1]


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """fp32 logits, soft-capped: softcap * tanh(logits / softcap).

    Infinities stay as they are: -inf is a mask, not a number to be lifted to -softcap, and +inf is an error
    that must not be hidden at +softcap.
    """
    x = logits.to(torch.float32)
    if softcap is None:
        return x
    return torch.where(x.isinf(), x, torch.tanh(x / softcap) * softcap)


def first_argmax(x: Tensor) -> Tensor:
    """Index of each row's largest entry, the lowest among equals: [n, V] -> int64 [n], always in range."""
    ids = torch.arange(x.shape[-1], device=x.device)
    return torch.where(x == x.amax(dim=-1, keepdim=True), ids, x.shape[-1] - 1).amin(dim=-1)


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
    if HAS_CAP:
        # Infinities and NaN fail the comparison and pass through.
        x = tl.where(tl.abs(x) < float("inf"), softcap * _tanh(x / softcap), x)
    return x


@jit
def _tanh(y):
    """tanh to about two units in the last place: an odd minimax polynomial near 0, the exponential beyond."""
    size = tl.minimum(tl.abs(y), 20.0)  # tanh has rounded to 1 long before; exp must not overflow
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    z = y * y
    fit = -0.3333328068 + z * (0.1333144158 + z * (-0.0537397154 + z * (0.0206390861 + z * -0.0057049864)))
    return tl.where(size < 0.625, y + y * (z * fit), tl.where(y < 0, -far, far))


@jit
def chunk_softmax(x, inv_t):
    """Of each row of x [n, CHUNK]: the maximum m in raw units, the sums of e^d and d e^d, d = (x - m) / T.

    A chunk without a finite entry has (-inf, 0, 0). One with a NaN or +inf has a NaN sum of e^d.
    """
    top = tl.max(x, axis=1)
    d = x - tl.where(top == float("-inf"), 0.0, top)[:, None]
    # A fused multiply-subtract may leave the maximum a hair above itself, which 1 / T blows up. NaN goes through.
    d = tl.minimum(d, 0.0, propagate_nan=tl.PropagateNan.ALL) * inv_t
    e = tl.exp(d)
    return top, tl.sum(e, axis=1), tl.sum(tl.where(e > 0, d, 0.0) * e, axis=1)


@jit
def merge_softmax(top, total, drift, inv_t):
    """Merge chunks [n] into their row: (bad, maximum, each chunk's d, sum of e^d, sum of d e^d).

    A bad row (a NaN, a +inf, or nothing finite) gets harmless numbers: maximum 0, sum 1.
    """
    row_top = tl.max(top, axis=0)
    bad = (tl.max((total != total).to(tl.int32), axis=0) > 0) | (row_top == float("-inf"))
    row_top = tl.where(bad, 0.0, row_top)
    live = (top > float("-inf")) & (bad == 0)
    d = tl.maximum(tl.where(live, (top - row_top) * inv_t, 0.0), -1e30)  # -inf would turn d * 0 into NaN
    scale = tl.where(live, tl.exp(d), 0.0)
    row_total = tl.where(bad, 1.0, tl.sum(tl.where(live, total, 0.0) * scale, axis=0))
    row_drift = tl.sum(tl.where(live, drift + d * total, 0.0) * scale, axis=0)
    d = tl.where(live, d, float("-inf"))
    return bad, row_top, d, row_total, row_drift


@jit
def first_index(hit, index, otherwise):
    """The lowest `index` [n] where `hit`, or `otherwise`."""
    return tl.min(tl.where(hit, index, otherwise), axis=0)


@jit
def take(values, index, at):
    """values[at] of a register tensor [n] whose entries are numbered by `index`."""
    return tl.sum(tl.where(index == at, values, 0), axis=0)
