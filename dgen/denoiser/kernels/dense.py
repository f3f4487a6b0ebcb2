"""Products of few rows: those that run beside the experts in what room these leave, and those that are cut in depth.

With few rows a product is too small for the card; cut in depth it fills it, and whoever reads the result adds the
parts. Many rows are cuBLAS's business.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgen.denoiser.kernels.norms import gelu
from dgen.jit import early, jit_for_any, take_turn, tl, triton


@dataclass(frozen=True, slots=True)
class DenseTiles:
    """Shape of the work: rows, columns and depth of a tile, warps, stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@jit_for_any("rows")
def _dense_kernel(
    x_ptr, w_ptr, out_ptr, rows, width, depth, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """x w^T of a tile and one share of the depth; GATED: gelu(x wg^T) * (x wu^T), wg's rows before wu's."""
    take_turn(EARLY)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(2) * share
    end = tl.minimum(begin + share, depth)
    k = tl.arange(0, DEPTH)
    x_ptr += tl.minimum(r, rows - 1)[:, None] * depth + k[None, :]
    w_ptr += tl.minimum(n, width - 1)[:, None] * depth + k[None, :]
    acc = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    up = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for k0 in range(begin, end, DEPTH):
        if EVEN:
            x = tl.load(x_ptr + k0)
            w = tl.load(w_ptr + k0)
        else:
            left = (k < end - k0)[None, :]
            x = tl.load(x_ptr + k0, mask=left, other=0.0)
            w = tl.load(w_ptr + k0, mask=left, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
        if GATED:
            if EVEN:
                w = tl.load(w_ptr + width * depth + k0)
            else:
                w = tl.load(w_ptr + width * depth + k0, mask=(k < end - k0)[None, :], other=0.0)
            up = tl.dot(x, tl.trans(w), up, input_precision=PRECISION)
    if GATED:
        acc = gelu(acc) * up
    at = (tl.program_id(2) * rows + r)[:, None] * width + n[None, :]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=(r < rows)[:, None] & (n < width)[None, :])


def dense(x: Tensor, weight: Tensor, out: Tensor, *, tiles: DenseTiles, gated: bool = False) -> None:
    """x [rows, K] times weight [N, K] transposed.

    Args:
        out: [rows, N] in any float dtype; or fp32 [parts, rows, N], still to be summed: each part has a share of K.
        gated: weight is [2 * N, K], gate first, and out gelu(gate) * up; not in parts.
    """
    rows, depth = x.shape
    parts = out.shape[0] if out.ndim == 3 else 1
    assert parts == 1 or not gated, "a gate needs the whole sum"
    width = out.shape[-1]
    share = triton.cdiv(triton.cdiv(depth, parts), tiles.depth) * tiles.depth
    _dense_kernel[(triton.cdiv(rows, tiles.rows), triton.cdiv(width, tiles.columns), parts)](
        x, weight, out, rows, width, depth, share,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, GATED=gated, EVEN=depth % tiles.depth == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tiles.warps, num_stages=tiles.stages, **early(x.device),
    )  # fmt: skip
