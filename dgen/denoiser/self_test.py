"""The fused denoiser against transformers' forward, over one small model on one device: a check of a machine.

What a broken driver, compiler or card would get wrong shows here in seconds; the tests of this room go far deeper.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from dgen.denoiser.base import Denoiser
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.jit import compiling_only

_TOLERANCE = 1e-4
"""Of fp32, relative, as a norm over a slot's logits: sums in another order lie about 3e-7 apart, a wrong one 1e-2."""
_WORSE = 3.0
"""Of bf16: how much further from fp32 than transformers' own bf16. Where two experts are all but equal a rounding
chooses between them, so that two sound forwards may lie apart by a half; a wrong kernel lies further by ten times."""
_TEMPERATURE = 0.7


def self_test(model: Any) -> list[str]:
    """What the fused denoiser computes otherwise than transformers over `model`; empty when they agree.

    Args:
        model: DiffusionGemmaForBlockDiffusion in fp32 or bf16, small, with a sliding layer, and of at least 5 windows
            of positions; left as it was but for the layout of its weights.

    Raises:
        SettingsError: the fused denoiser can't run here.
        Exception: whatever a compiler or a driver raises.
    """
    # An expert that is chosen by a rounding is chance: other ids meet another one, a wrong kernel stays wrong.
    return _differences(model, seed=1) and _differences(model, seed=2)


def _differences(model: Any, *, seed: int) -> list[str]:
    window = int(model.config.get_text_config().sliding_window)
    prompts = (window - 1, window + 1, 3 * window)
    slots = len(prompts)
    # Before the reference hooks itself into the model.
    exact = None if model.dtype == torch.float32 else copy.deepcopy(model).float()
    plain = ReferenceDenoiser(model, num_slots=slots)
    ours = FusedDenoiser(model, num_slots=slots, graphs=False)
    _compile(ours)
    found = list(_walk(ours, prompts, seed=seed))
    if exact is None:
        apart = _apart(found, _walk(plain, prompts, seed=seed))
        return [f"{name} differs by {value:.1e}" for name, value in apart if not value <= _TOLERANCE]
    truth = list(_walk(ReferenceDenoiser(exact, num_slots=slots), prompts, seed=seed))
    limit = _WORSE * _mean_square(_apart(_walk(plain, prompts, seed=seed), truth)) ** 0.5
    apart = _apart(found, truth)
    if _mean_square(apart) ** 0.5 <= limit:
        return []
    return [f"{name} differs by {value:.1e}" for name, value in apart if not value <= limit] or [
        f"all passes together differ by more than {limit:.1e}"
    ]


def _compile(denoiser: FusedDenoiser) -> None:
    """All kernels side by side: one after the other they take as long as everything else together."""
    if denoiser.device.type == "cuda":
        denoiser.prepare()
        spare = torch.full((denoiser.num_slots,), denoiser.num_slots, device=denoiser.device)
        with torch.inference_mode(), compiling_only():
            denoiser.denoise(spare, spare[:, None].expand(-1, denoiser.canvas_len))


def _walk(denoiser: Denoiser, prompts: tuple[int, ...], *, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Prompts, a canvas in two steps, its commit, a step of the next: what each pass is called, and its logits.

    Logits are fp32 [canvas_len * vocab] on the CPU, behind the softcap. What is fed back is drawn, not computed, so
    that every denoiser reads the same.
    """
    generator = torch.Generator().manual_seed(seed)
    device, length, vocab = denoiser.device, denoiser.canvas_len, denoiser.vocab_size

    def ids(*shape: int) -> Tensor:
        # Both ends of a vocabulary hold special tokens, padding among them.
        return torch.randint(vocab // 8, vocab - vocab // 8, shape, generator=generator).to(device)

    rows = torch.arange(len(prompts), device=device)
    for slot, count in enumerate(prompts):
        denoiser.prefill(slot, ids(count))

    def step(name: str) -> Iterator[tuple[str, Tensor]]:
        logits = denoiser.denoise(rows, ids(len(prompts), length)).float()
        if denoiser.softcap is not None:
            logits = denoiser.softcap * torch.tanh(logits / denoiser.softcap)
        for count, one in zip(prompts, logits.view(len(prompts), -1).cpu(), strict=True):
            yield f"{name} behind {count} tokens", one

    yield from step("the first step")
    logits = (torch.randn(len(prompts) * length, vocab, generator=generator) * 3).to(device)
    probs = (logits / _TEMPERATURE).softmax(-1).to(denoiser.probs_dtype or torch.float32)
    pinned = (torch.arange(length, device=device) % 5 == 1).expand(len(prompts), -1)
    heat = torch.full((len(prompts),), _TEMPERATURE, device=device)
    denoiser.condition(rows, logits, heat, probs, pinned)
    yield from step("a self-conditioned step")
    denoiser.commit(rows, ids(len(prompts), length))
    yield from step("a step behind a commit")


def _apart(
    found: Iterable[tuple[str, Tensor]], wanted: Iterable[tuple[str, Tensor]]
) -> list[tuple[str, float]]:
    """|found - wanted| / |wanted| of each pass, by its name; NaN where one is."""
    pairs = zip(found, wanted, strict=True)
    return [(name, float((ours - theirs).norm() / theirs.norm())) for (name, ours), (_, theirs) in pairs]


def _mean_square(apart: list[tuple[str, float]]) -> float:
    return sum(value**2 for _, value in apart) / len(apart)
