"""Which denoiser runs a model: the fused one on CUDA where it can, else transformers' own forward."""

from __future__ import annotations

from typing import Any

import torch

from dgen.denoiser.base import Denoiser
from dgen.denoiser.fused import FusedDenoiser, require_fused
from dgen.denoiser.need import check_context
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.denoiser.weights import unsupported
from dgen.errors import SettingsError
from dgen.jit import has_triton

DENOISERS = ("auto", "reference", "fused")
LEAST_CONTEXT = 8192
"""Positions that a slot should have before another slot is worth its memory, where neither is asked for."""


def build_denoiser(
    model: Any,
    *,
    denoiser: str = "auto",
    num_slots: int = 1,
    fewer: bool = False,
    max_context: int | None = None,
    graphs: bool = True,
    free: int | None = None,
) -> Denoiser:
    """The denoiser of that name over `model`; arguments as in `FusedDenoiser`.

    Args:
        fewer: whether fewer slots will do where memory would leave them a short context or none.

    Raises:
        SettingsError: an unknown name, a context without room for a prompt, or `fused` where it can't run or its
            memory does not suffice.
    """
    if max_context is not None:
        check_context(max_context, model.config.canvas_length)
    if not takes_fused(model, denoiser):
        return ReferenceDenoiser(model, num_slots=num_slots, max_context=max_context)
    while fewer and num_slots > 1:
        try:
            return FusedDenoiser(
                model,
                num_slots=num_slots,
                max_context=max_context,
                least_context=LEAST_CONTEXT,
                graphs=graphs,
                free=free,
            )
        except SettingsError:
            num_slots //= 2
    return FusedDenoiser(model, num_slots=num_slots, max_context=max_context, graphs=graphs, free=free)


def takes_fused(model: Any, denoiser: str, *, device: torch.device | None = None) -> bool:
    """Whether the denoiser of that name is the fused one for a model.

    Args:
        device: where it is to run, if not where it is.

    Raises:
        SettingsError: an unknown name, or `fused` where it can't run.
    """
    if denoiser not in DENOISERS:
        raise SettingsError(f"unknown denoiser '{denoiser}'", hint=f"One of: {', '.join(DENOISERS)}.")
    if denoiser == "fused":
        require_fused(model, device=device)
        return True
    return denoiser == "auto" and why_reference(model, device=device) is None


def why_reference(model: Any, *, device: torch.device | None = None) -> str | None:
    """Why `auto` takes the reference denoiser for a model; None where it takes the fused one.

    Args:
        device: where it is to run, if not where it is.
    """
    device = device or model.device
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    if not has_triton():
        return "the package triton is not installed"
    return unsupported(model, device=device)
