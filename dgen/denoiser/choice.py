"""Which denoiser runs a model: the fused one on CUDA where it can, else transformers' own forward."""

from __future__ import annotations

from typing import Any

from dgen.denoiser.base import Denoiser
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.denoiser.weights import unsupported
from dgen.errors import SettingsError
from dgen.jit import has_triton

DENOISERS = ("auto", "reference", "fused")


def build_denoiser(
    model: Any,
    *,
    denoiser: str = "auto",
    num_slots: int = 1,
    max_context: int | None = None,
    graphs: bool = True,
    free: int | None = None,
) -> Denoiser:
    """The denoiser of that name over `model`; arguments as in `FusedDenoiser`.

    Raises:
        SettingsError: an unknown name, or `fused` where it can't run or its memory does not suffice.
    """
    if denoiser not in DENOISERS:
        raise SettingsError(f"unknown denoiser '{denoiser}'", hint=f"One of: {', '.join(DENOISERS)}.")
    if denoiser == "fused" or (denoiser == "auto" and why_reference(model) is None):
        return FusedDenoiser(model, num_slots=num_slots, max_context=max_context, graphs=graphs, free=free)
    return ReferenceDenoiser(model, num_slots=num_slots, max_context=max_context)


def why_reference(model: Any) -> str | None:
    """Why `auto` takes the reference denoiser for a model; None where it takes the fused one."""
    if model.device.type != "cuda":
        return f"the device is {model.device.type}, not cuda"
    if not has_triton():
        return "the package triton is not installed"
    return unsupported(model)
