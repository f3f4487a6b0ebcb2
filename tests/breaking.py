"""Helpers of the checkpoint tests: change a checkpoint's files, and catch what `load` says about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dgen import checkpoint
from dgen.errors import DgenError

WEIGHTS = "model.safetensors"
SCALAR = "model.encoder.language_model.layers.0.layer_scalar"
EMBEDDING = "model.decoder.embed_tokens.weight"


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Apply `change` to the tensors of model.safetensors and write them back."""
    tensors = {key: tensor.clone() for key, tensor in load_file(folder / WEIGHTS).items()}
    change(tensors)
    # Written beside and put in place: a loaded model may have the old file mapped.
    save_file(tensors, folder / "new", metadata={"format": "pt"})
    (folder / "new").replace(folder / WEIGHTS)


def refusal(model: Path | str, **settings: Any) -> DgenError:
    """What `load` raises: one line and a hint."""
    with pytest.raises(DgenError) as caught:
        checkpoint.load(str(model), **settings)
    error = caught.value
    assert "\n" not in error.message
    assert error.hint
    return error


def logits_of(model: Any) -> torch.Tensor:
    """Logits [1, canvas_len, vocab_size] of a fixed prompt and canvas, on the CPU."""
    canvas = torch.arange(100, 100 + model.config.canvas_length)[None].to(model.device)
    prompt = torch.arange(20, 33)[None].to(model.device)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=prompt, decoder_input_ids=canvas).logits
    return logits.cpu()
