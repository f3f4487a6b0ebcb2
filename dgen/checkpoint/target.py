"""Where weights go and as what: device and dtype names, checked by spelling, then against the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dgen.errors import UsageError

if TYPE_CHECKING:
    import torch

DTYPES = {
    "auto": "auto",
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def check_names(device: str, dtype: str) -> None:
    """Raise UsageError for a device or dtype that dgen never has; needs no torch."""
    if device == "mps" or device.startswith("mps:"):
        raise UsageError("device mps is not supported: dgen is not tested there", hint="Use --device cpu.")
    if not _DEVICE.fullmatch(device):
        raise UsageError(f"unknown device {device!r}", hint="Use auto, cpu, cuda or cuda:N.")
    if dtype in ("float16", "fp16", "half"):
        raise UsageError(
            f"dtype {dtype} is refused: this model's activations overflow its range and turn into NaN",
            hint="Use bfloat16 or float32.",
        )
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint="Use auto, float32 (fp32) or bfloat16 (bf16).")


def pick_device(device: str) -> torch.device:
    """The device of that name, or UsageError where this machine has none such."""
    import torch

    if device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    target = torch.device(device)
    if target.type != "cuda":
        return target
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not cards:
        reason = "this torch sees no CUDA card" if torch.version.cuda else "this torch is built without CUDA"
        raise UsageError(f"device {device} is not there: {reason}", hint="Use --device cpu.")
    index = target.index or 0
    if index >= cards:
        raise UsageError(
            f"device {device} is not there: CUDA cards are numbered from 0, and there are {cards}",
            hint=f"Use cuda:{cards - 1}." if cards > 1 else "Use cuda:0.",
        )
    return torch.device("cuda", index)


def pick_dtype(dtype: str, stored: str, device: torch.device) -> str:
    """float32 or bfloat16, in torch's spelling; `stored` is the files' own.

    auto is float32 on a CPU whatever the files hold: bfloat16 changes outputs there and is slower.
    """
    name = DTYPES[dtype]
    if name != "auto":
        return name
    return "bfloat16" if device.type == "cuda" and stored == "bfloat16" else "float32"


def make_current(device: torch.device) -> None:
    """Make a card torch's current one: Triton launches its kernels there, whatever device their tensors are on."""
    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)
