"""A shape of wide attention that is small enough for the interpreter, with two parts of values to a tile of keys."""

from __future__ import annotations

from dgen.denoiser.kernels.wide_attention import WideTiles

WIDE = WideTiles(
    rows=16,
    splits=1,
    keys=32,
    depth=32,
    stages=1,
    warps=4,
    value_keys=16,
    columns=32,
    value_stages=1,
    value_warps=4,
)
