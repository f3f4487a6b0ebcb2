"""The training objective on one batch: noise, two decoder passes, self-conditioning between them, the losses.

Source: the published fine-tuning objective of block diffusion with uniform noise. Static shapes, no host reads,
so that a CUDA graph can hold it.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from builtin_recipe import forward
from builtin_recipe.examples import Pool
from builtin_recipe.sizes import CANVAS

ENCODER_WEIGHT, BALANCE_WEIGHT = 0.1, 0.01
GAP_SHARE = 0.06  # of ordinary examples, shown with a gap instead of noise everywhere
LONGEST_GAP = 12
MOST_GAPS = 3


@dataclass(frozen=True, slots=True)
class Data:
    """A pool on the training device; `rows` is how many examples a batch takes."""

    prefix: Tensor
    canvas: Tensor
    pads: Tensor
    filled: Tensor
    gaps: Tensor
    rows: int


def to_device(pool: Pool, device: torch.device, *, rows: int) -> Data:
    """The pool's arrays as tensors on `device`."""
    arrays = {f: torch.from_numpy(getattr(pool, f)).to(device) for f in Pool.__slots__}
    return Data(**arrays, rows=rows)


def _spread(rows: int, device: torch.device) -> Tensor:
    return torch.rand(rows, 1, device=device)


def noised(canvas: Tensor, filled: Tensor, gaps: Tensor, vocabulary: int) -> Tensor:
    """Canvases [rows, CANVAS] with noise: each position with chance t ~ U(0.001, 1), or up to MOST_GAPS spans of text.

    Noise is uniform over the whole vocabulary. Where `gaps` is set only spans are made. Spans may meet, and take up to
    LONGEST_GAP positions together.
    """
    rows, device = canvas.shape[0], canvas.device
    at = torch.arange(CANVAS, device=device)[None]
    t = 0.001 + 0.999 * _spread(rows, device)
    everywhere = torch.rand(canvas.shape, device=device) < t
    count = 1 + (_spread(rows, device) * MOST_GAPS).floor()
    longest = (filled[:, None].clamp(max=LONGEST_GAP) / count).floor().clamp(min=1)
    span = torch.zeros_like(canvas, dtype=torch.bool)
    for number in range(MOST_GAPS):
        width = 1 + (_spread(rows, device) * longest).floor().clamp(max=longest - 1)
        start = (_spread(rows, device) * (filled[:, None] - width + 1).clamp(min=1)).floor()
        span |= (at >= start) & (at < start + width) & (count > number)
    behind = (at >= filled[:, None] - 1) & (_spread(rows, device) < 0.5)
    gap = gaps[:, None].bool() | (_spread(rows, device) < GAP_SHARE)
    swap = torch.where(gap, span | behind, everywhere)
    return torch.where(swap, torch.randint(0, vocabulary, canvas.shape, device=device), canvas)


def batch_loss(
    model: Any, layout: forward.Layout, flat: Tensor, data: Data, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss of one batch drawn from `data`, and the canvas cross-entropy alone (detached)."""
    device = data.pads.device
    pick = torch.randint(0, data.pads.shape[0], (data.rows,), device=device)
    prefix, canvas = data.prefix[pick].long(), data.canvas[pick].long()
    pads, filled, gaps = data.pads[pick].long(), data.filled[pick].long(), data.gaps[pick]
    length, vocabulary = (
        prefix.shape[1],
        dict(zip(layout.names, layout.shapes, strict=True))["embed_tokens.weight"][0],
    )

    w = forward.views(layout, flat, dtype)
    at = torch.arange(length + CANVAS, device=device)[None] - pads[:, None]
    before = forward.rotations(model, at[:, :length].clamp(min=0))
    here = forward.rotations(model, at[:, length:])
    masks = forward.encoder_masks(pads, length, layout.window)
    hidden, kept, balance = forward.encode(w, layout, prefix, before, masks, dtype=dtype)

    x = noised(canvas, filled, gaps, vocabulary)
    masks = forward.decoder_masks(pads, length, CANVAS, layout.window)
    with torch.no_grad():
        first, _ = forward.decode(w, layout, x, None, here, masks, kept, dtype=dtype)
        temperature = 0.4 + 0.6 * _spread(data.rows, device)[:, :, None]
        soft = forward.soft_embeddings(w, layout, first, temperature, dtype=dtype)
        soft = soft * (_spread(data.rows, device) < 0.5)[:, :, None]
    logits, more = forward.decode(w, layout, x, soft, here, masks, kept, dtype=dtype)
    main = F.cross_entropy(logits.flatten(0, 1), canvas.flatten())

    ahead = forward.logits_of(w, layout, hidden[:, :-1], dtype=dtype).flatten(0, 1)
    real = (torch.arange(length - 1, device=device)[None] >= pads[:, None]).flatten().float()
    causal = F.cross_entropy(ahead, prefix[:, 1:].flatten(), reduction="none")
    causal = (causal * real).sum() / real.sum().clamp(min=1)
    return main + ENCODER_WEIGHT * causal + BALANCE_WEIGHT * (balance + more), main.detach()
