"""Which implementation runs: Triton's kernels or torch's references, behind one call signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dgen.errors import SettingsError
from dgen.jit import has_triton, require_triton
from dgen.sampler.logprobs import stash_converged_logprobs, stash_converged_logprobs_reference
from dgen.sampler.noise import launch_random_ids, random_ids_reference
from dgen.sampler.row_stats import RowStats, sample_row_stats, sample_row_stats_reference

KERNELS = ("auto", "triton", "torch")


@dataclass(frozen=True, slots=True)
class SamplerKernels:
    """The functions that exist twice, as kernels and as torch references.

    Attributes:
        name: "triton" or "torch", for records.
        row_stats: called as `sample_row_stats`.
        stash: called as `stash_converged_logprobs`.
        random_ids: called as `noise.random_ids`.
    """

    name: str
    row_stats: Callable[..., RowStats]
    stash: Callable[..., None]
    random_ids: Callable[..., Tensor]


def kernels_for(kernel: str, device: torch.device | str) -> SamplerKernels:
    """The implementation for `kernel`: "triton", "torch", or "auto" (Triton on CUDA, else torch).

    Raises:
        SettingsError: unknown name, or "triton" where its kernels cannot run.
    """
    device = torch.device(device)
    if kernel not in KERNELS:
        raise SettingsError(f"unknown kernel '{kernel}'", hint=f"one of: {', '.join(KERNELS)}.")
    if kernel == "auto":
        kernel = "triton" if device.type == "cuda" and has_triton() else "torch"
    if kernel == "triton":
        require_triton(device)
        return SamplerKernels("triton", sample_row_stats, stash_converged_logprobs, launch_random_ids)
    return SamplerKernels("torch", _row_stats_torch, stash_converged_logprobs_reference, random_ids_reference)


def _row_stats_torch(
    logits: Tensor,
    temps: Tensor,
    canvas_len: int,
    seed: int,
    probs_dtype: torch.dtype | None,
    **keywords: Any,
) -> RowStats:
    """The reference behind the kernels' signature: the seed stands among its keywords."""
    return sample_row_stats_reference(logits, temps, canvas_len, probs_dtype, seed=seed, **keywords)
