"""One integer that sorts like a logit and then, among equals, by lower id: the order of the stash's top-k."""

# mypy: allow-untyped-defs
from __future__ import annotations

import torch
from torch import Tensor

from dgen.jit import jit, tl


def order_keys_reference(x: Tensor) -> Tensor:
    """Keys of fp32 logits [n, V], int64, all different; -0.0 and 0.0 are equal logits, a NaN has no order.

    The high half holds the value's bits, made monotone (a negative float's bits run backwards); the low half
    the id, reversed.
    """
    bits = (x + 0.0).view(torch.int32)
    monotone = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (monotone.long() << 32) + (0x7FFFFFFF - torch.arange(x.shape[-1], device=x.device))


@jit
def order_key(x, index):
    """The Triton form of `order_keys_reference`."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    monotone = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (monotone.to(tl.int64) << 32) + (0x7FFFFFFF - index)


@jit
def key_value(key):
    """The logit in a key."""
    monotone = (key >> 32).to(tl.int32)
    return (monotone ^ ((monotone >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def key_id(key):
    """The id in a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)
