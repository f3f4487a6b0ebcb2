"""Whether our kernels compute here what their references do: the sampler's, and the fused denoiser's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dgen.checkpoint.architecture import Architecture, read_architecture
from dgen.cli.check import Check
from dgen.settings import Settings

if TYPE_CHECKING:
    import torch

_CARD = {
    "canvas_length": 64,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "num_global_key_value_heads": 2,
    "global_head_dim": 512,
    "sliding_window": 48,
    "num_experts": 32,
    "top_k_experts": 4,
    "moe_intermediate_size": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
}
"""The released model's heads, so that the kernels are the ones that it would run on; everything else is small."""
_INTERPRETED = {
    "canvas_length": 3,
    "hidden_size": 32,
    "intermediate_size": 32,
    "sliding_window": 4,
    "num_experts": 4,
    "moe_intermediate_size": 16,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
"""What Triton's interpreter, a million times slower than a card, does in seconds."""
_LAYERS = ["sliding_attention", "full_attention"]


def sampler_kernels(run: Settings, doing: Callable[[str], None]) -> Check:
    """Whether the sampler's Triton kernels agree with torch."""
    from dgen.checkpoint import target
    from dgen.sampler import kernels_for
    from dgen.sampler.self_test import self_test

    device = target.pick_device(run.device)
    if kernels_for(run.kernel, device).name == "torch":
        return Check(
            "kernels", "skip", f"not tested: {_why_torch(run, device)}, so the sampler runs in torch"
        )
    doing("compiling and testing the sampler's kernels")
    wrong = self_test(device)
    if wrong:
        return _failed("kernels", wrong, "--set kernel=torch")
    return Check("kernels", "ok", f"the sampler's Triton kernels agree with torch on {device}")


def _why_torch(run: Settings, device: torch.device) -> str:
    if run.kernel == "torch":
        return "the kernel 'torch' was asked for"
    return "the device is a CPU" if device.type == "cpu" else "triton is not installed"


def fused_denoiser(run: Settings, doing: Callable[[str], None]) -> Check:
    """Whether the fused denoiser agrees with transformers' forward, in the dtype that `run` asks for."""
    from dgen.checkpoint import target
    from dgen.checkpoint.random_weights import build_random
    from dgen.denoiser.self_test import self_test
    from dgen.denoiser.weights import unsupported
    from dgen.jit import has_triton, is_interpreted

    device = target.pick_device(run.device)
    if run.denoiser == "reference":
        return Check("fused", "skip", "not tested: the denoiser 'reference' was asked for")
    if not has_triton():
        return Check("fused", "skip", "not tested: triton is not installed")
    if device.type != "cuda" and not is_interpreted():
        return Check("fused", "skip", "not tested: no card")
    doing("compiling and testing the fused denoiser's kernels")
    # Triton's interpreter gets products of bf16 wrong.
    dtype = target.pick_dtype(run.dtype, "bfloat16", device) if device.type == "cuda" else "float32"
    model = build_random(_sizes(device.type), device=str(device), dtype=dtype)
    reason = unsupported(model)
    if reason is not None:  # of the card: whether that matters is told where the denoiser is chosen
        return Check("fused", "skip", f"not tested: {reason}")
    wrong = self_test(model)
    if wrong:
        return _failed("fused", wrong, "--denoiser reference")
    return Check("fused", "ok", f"the fused denoiser agrees with transformers as {dtype} on {device}")


def _sizes(device: str) -> Architecture:
    tiny = read_architecture("tiny")
    fields: dict[str, Any] = dict(_CARD if device == "cuda" else _INTERPRETED)
    top = {"canvas_length": fields.pop("canvas_length")}
    text = {**tiny.text, "num_hidden_layers": len(_LAYERS), "layer_types": _LAYERS, **fields}
    return replace(tiny, name="of the self-test", top=top, text=text)


def _failed(name: str, wrong: Sequence[str], instead: str) -> Check:
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return Check(name, "fail", f"{wrong[0]}{more}", f"Use {instead}, and report GPU, driver and versions.")
