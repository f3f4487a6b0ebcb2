"""The recipe's forward pass is transformers' own: with and without padding, past the window, with self-conditioning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builtin_recipe import forward
from builtin_recipe.model import build_config, build_model
from builtin_recipe.sizes import CANVAS, VOCABULARY, WINDOW

LENGTH = 100  # longer than the window
FULL = torch.float32


@pytest.fixture(scope="module")
def made() -> tuple[Any, forward.Layout, torch.Tensor]:
    """A tiny model with every weight (scalars too) away from its start."""
    model = build_model(
        build_config(hidden=64, layers=("sliding_attention", "full_attention")), seed=0
    ).eval()
    layout, flat = forward.flatten(model)
    flat = flat + 0.05 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(1))
    forward.unflatten_into(model, layout, flat)
    return model, layout, flat


@pytest.mark.parametrize("pads", [0, 13, 60])
@torch.no_grad()
def test_logits_equal_transformers(made: tuple[Any, forward.Layout, torch.Tensor], pads: int) -> None:
    model, layout, flat = made
    generator = torch.Generator().manual_seed(2)
    prefix = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    canvas = torch.randint(0, VOCABULARY, (2, CANVAS), generator=generator)
    before_logits = 3 * torch.randn(2, CANVAS, VOCABULARY, generator=generator)
    first = model(input_ids=prefix[:, pads:], decoder_input_ids=canvas)
    second = model(
        input_ids=prefix[:, pads:], decoder_input_ids=canvas, self_conditioning_logits=before_logits
    )

    w = forward.views(layout, flat, FULL)
    padded = torch.full((2,), pads)
    at = torch.arange(LENGTH + CANVAS)[None] - padded[:, None]
    before = forward.rotations(model, at[:, :LENGTH].clamp(min=0))
    here = forward.rotations(model, at[:, LENGTH:])
    masks = forward.encoder_masks(padded, LENGTH, WINDOW)
    _, kept, _ = forward.encode(w, layout, prefix, before, masks, dtype=FULL)
    masks = forward.decoder_masks(padded, LENGTH, CANVAS, WINDOW)
    ours, _ = forward.decode(w, layout, canvas, None, here, masks, kept, dtype=FULL)
    torch.testing.assert_close(ours, first.logits, atol=1e-4, rtol=1e-4)
    soft = forward.soft_embeddings(w, layout, before_logits, torch.ones(2, 1, 1), dtype=FULL)
    ours, _ = forward.decode(w, layout, canvas, soft, here, masks, kept, dtype=FULL)
    torch.testing.assert_close(ours, second.logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(first.logits, second.logits, atol=1e-2)


def test_weights_go_into_the_model_and_come_back(made: tuple[Any, forward.Layout, torch.Tensor]) -> None:
    model, layout, flat = made
    again, values = forward.flatten(model)
    assert again == layout
    assert torch.equal(values, flat)
