"""Top-k and top-p: logits in, logits out with the dropped entries at -inf.

Both act on the tempered, soft-capped distribution, top-k first, as is common. A plain torch function: these
filters are off in the released model's defaults, and whoever turns them on pays for a sort of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgen.sampler.chunks import MIN_TEMPERATURE, capped, is_bad, row_tiles


def filter_logits(
    logits: Tensor,
    temps: Tensor,
    canvas_len: int,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Drop what top-k and top-p exclude.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16; row i belongs to request i // canvas_len.
        temps: fp32 [m], clamped to 1e-10.
        top_k: int64 [m]; 0 is off. Whatever equals the k-th largest logit is kept too.
        top_p: fp32 [m]; 1 (or more) is off. Of what top-k left, the smallest set of the likeliest tokens
            whose mass reaches top_p is kept, equal ones by lower id, and always at least one.
        softcap: as in `sample_row_stats`; the returned logits are still to be soft-capped there.

    Returns:
        A new tensor of the logits' dtype, or `logits` itself when nothing is on. None means off for all,
        without a look at values; CUDA tensors are never looked at (that would wait for the device), so pass
        None where nothing is on. Rows with a NaN, a +inf or no finite entry come back as they are, for the
        sampler to refuse.
    """
    rows, vocab_size = logits.shape
    top_k = None if top_k is None or _known_off(top_k <= 0) else top_k
    top_p = None if top_p is None or _known_off(top_p >= 1) else top_p
    if rows == 0 or (top_k is None and top_p is None):
        return logits
    out = logits.clone(memory_format=torch.contiguous_format)
    request = torch.arange(rows, device=logits.device) // canvas_len
    for tile in row_tiles(rows, 4 * vocab_size):
        of = request[tile]
        x = capped(logits[tile], softcap)
        t = temps[of].to(torch.float32).clamp(min=MIN_TEMPERATURE)
        keep = _kept(x, t, None if top_k is None else top_k[of], None if top_p is None else top_p[of])
        keep |= is_bad(x)[:, None]
        out[tile].masked_fill_(~keep, float("-inf"))
    return out


def _known_off(off: Tensor) -> bool:
    return off.device.type == "cpu" and bool(off.all())


def _kept(x: Tensor, t: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Which entries of a tile survive: fp32 [n, V] and per-row settings [n] -> bool [n, V]."""
    vocab_size = x.shape[-1]
    descending, order = torch.sort(x, dim=-1, descending=True, stable=True)
    keep = torch.ones_like(descending, dtype=torch.bool)
    if top_k is not None:
        k = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size)
        kth = descending.gather(-1, (k - 1)[:, None])
        keep = descending >= kth
    if top_p is not None:
        scaled = ((descending - descending[:, :1]) / t[:, None]).masked_fill(~keep, float("-inf"))
        mass = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
        before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
        within = (before < top_p[:, None]) | (top_p >= 1)[:, None]
        within[:, 0] = True
        keep &= within
    return torch.zeros_like(keep).scatter(-1, order, keep)
