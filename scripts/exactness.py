"""How far the fused denoiser and transformers' own forward in bf16 each are from fp32, on the same weights and inputs.

Random weights of an architecture stand in for a checkpoint. A deep random network is chaotic: rounding grows layer by
layer until the logits of two correct implementations have little in common, so what counts is ours beside theirs,
and where the growth begins (the first layers' keys). Needs a CUDA card with room for the weights in fp32.

    python scripts/exactness.py --arch 26b-a4b --prompt-tokens 1024
    python scripts/exactness.py --arch 26b-a4b --layers 6
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
from itertools import chain
from typing import Any

import torch

from dgen.checkpoint.architecture import read_architecture
from dgen.checkpoint.random_weights import build_random
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", default="26b-a4b", help="an architecture's name or file")
    parser.add_argument("--layers", type=int, default=None, help="only this many layers")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--canvases", type=int, default=2, help="canvases, each denoised once and committed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", help="cpu needs TRITON_INTERPRET=1 and --dtype float32")
    parser.add_argument("--dtype", default="bfloat16", help="of the two forwards that are compared with fp32")
    asked = parser.parse_args()
    architecture = read_architecture(asked.arch)
    if asked.layers is not None:
        text = {**architecture.text, "num_hidden_layers": asked.layers}
        architecture = dataclasses.replace(architecture, text=text)
    model = build_random(architecture, device=asked.device, dtype=asked.dtype, seed=asked.seed)
    generator = torch.Generator().manual_seed(asked.seed)
    vocab, canvas = model.config.get_text_config().vocab_size, model.config.canvas_length
    prompt = torch.randint(vocab, (asked.prompt_tokens,), generator=generator).to(model.device)
    canvases = torch.randint(vocab, (asked.canvases, canvas), generator=generator).to(model.device)

    fused = FusedDenoiser(model, max_context=asked.prompt_tokens + (asked.canvases + 1) * canvas)
    ours = run(fused, prompt, canvases, cap=fused.softcap)
    del fused
    gc.collect()  # its buffers, and the matrices that it joined
    theirs = run(ReferenceDenoiser(model), prompt, canvases, cap=None)
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.float()  # each bf16 original is freed on the way
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    exact = run(ReferenceDenoiser(model), prompt, canvases, cap=None)
    found = {
        "arch": asked.arch,
        "layers": model.config.get_text_config().num_hidden_layers,
        "prompt_tokens": asked.prompt_tokens,
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu",
        "dtype": asked.dtype,
        "canvases": [
            {
                name: compare(logits[i], exact[i])
                for name, logits in (("dgen", ours), ("transformers", theirs))
            }
            for i in range(asked.canvases)
        ],
    }
    print(json.dumps(found, indent=1))


@torch.inference_mode()
def run(
    denoiser: Any, prompt: torch.Tensor, canvases: torch.Tensor, *, cap: float | None
) -> list[torch.Tensor]:
    """Soft-capped fp32 logits of each canvas' first step, on the host; each canvas is committed behind the last."""
    slots = torch.tensor([0], device=prompt.device)
    denoiser.prefill(0, prompt)
    found = []
    for canvas in canvases:
        logits = denoiser.denoise(slots, canvas[None]).float()
        found.append((logits if cap is None else cap * torch.tanh(logits / cap)).cpu())
        denoiser.commit(slots, canvas[None])
    return found


def compare(logits: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    """Error in the Frobenius norm over the norm, largest error, and share of rows with the same argmax."""
    difference = (logits - exact).double()
    return {
        "relative_error": (difference.norm() / exact.double().norm()).item(),
        "largest_error": difference.abs().max().item(),
        "argmax_agreement": (logits.argmax(-1) == exact.argmax(-1)).double().mean().item(),
    }


if __name__ == "__main__":
    main()
