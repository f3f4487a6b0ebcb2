"""load: what comes out is what transformers loads, and what the files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from breaking import EMBEDDING, edit_weights, logits_of, refusal
from tiny import EOS, RELEASED_EOS, edit_json, tiny_checkpoint, tiny_model
from transformers import DiffusionGemmaForBlockDiffusion
from transformers.utils import logging

from dgen import checkpoint
from dgen.checkpoint import network, source


@pytest.mark.parametrize("settings", [{}, {"tied": False}, {"layers": "ssf", "window": 4, "seed": 3}])
def test_the_model_is_the_one_that_transformers_loads(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = tiny_checkpoint(tmp_path, **settings)
    loaded = checkpoint.load(str(folder), device="cpu").model
    theirs = DiffusionGemmaForBlockDiffusion.from_pretrained(folder)
    assert torch.equal(logits_of(loaded), logits_of(theirs))
    assert not loaded.training
    assert not any(weight.requires_grad for weight in loaded.parameters())
    assert network.ties(loaded) == network.ties(theirs)
    assert bool(network.ties(loaded)) == settings.get("tied", True)
    assert loaded.generation_config.to_dict() == theirs.generation_config.to_dict()


def test_it_says_what_the_files_say(pristine: Path) -> None:
    loaded = checkpoint.load(str(pristine), device="cpu")
    assert loaded.defaults == {
        "max_tokens": 32,
        "steps": 48,
        "entropy_bound": 0.1,
        "t_min": 0.4,
        "t_max": 0.8,
        "stability": 1,
        "confidence": 0.005,
    }
    assert (loaded.canvas_len, loaded.vocab_size, loaded.max_context, loaded.window) == (8, 480, 512, 8)
    assert (loaded.name, loaded.path, loaded.revision) == (str(pristine), pristine, None)
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert loaded.vocabulary.size == len(loaded.tokenizer) < loaded.vocab_size


def test_eos_is_the_union_of_all_that_files_and_tokenizer_name(folder: Path) -> None:
    assert checkpoint.load(str(folder)).eos_ids == set(RELEASED_EOS)
    edit_json(folder / "generation_config.json", eos_token_id=30)
    edit_json(folder / "config.json", eos_token_id=[31, 480, -1])
    assert checkpoint.load(str(folder)).eos_ids == {30, 31, EOS}
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", eos_token_id=None)
    loaded = checkpoint.load(str(folder))
    assert loaded.eos_ids == {EOS}
    assert loaded.defaults == {}


def test_values_that_transformers_refuses_reach_the_settings(folder: Path) -> None:
    edit_json(folder / "generation_config.json", t_max=0.4, confidence_threshold=1, max_new_tokens=None)
    loaded = checkpoint.load(str(folder))
    assert loaded.defaults["t_max"] == loaded.defaults["t_min"] == 0.4
    assert loaded.defaults["confidence"] == 1
    assert "max_tokens" not in loaded.defaults


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_a_cpu_computes_in_float32_whatever_the_file_holds(folder: Path, stored: torch.dtype) -> None:
    edit_weights(folder, lambda tensors: tensors.update({k: t.to(stored) for k, t in tensors.items()}))
    assert checkpoint.load(str(folder), device="cpu").dtype is torch.float32
    assert checkpoint.load(str(folder), device="cpu", dtype="bf16").dtype is torch.bfloat16


def test_any_name_of_a_tied_weight_will_do(folder: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop(EMBEDDING)

    before = logits_of(checkpoint.load(str(folder)).model)
    edit_weights(folder, rename)
    loaded = checkpoint.load(str(folder)).model
    assert torch.equal(logits_of(loaded), before)
    assert loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight


def test_shards_are_one_checkpoint(pristine: Path, tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(logits_of(checkpoint.load(str(tmp_path)).model), logits_of(model))
    shard = sorted(tmp_path.glob("*.safetensors"))[0]
    shard.unlink()
    assert shard.name in refusal(tmp_path).message


def test_progress_ends_at_all_bytes(pristine: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    loaded = checkpoint.load(str(pristine), progress=lambda *report: seen.append(report))
    kind, done, total = seen[-1]
    assert (kind, done) == ("load", total)
    assert total > sum(weight.nbytes for weight in loaded.model.parameters()) > 0


def test_transformers_is_silent_inside_and_as_before_outside(
    pristine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        checkpoint.load(str(pristine))
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_importing_it_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, dgen.checkpoint; print({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_builtin_is_the_shipped_folder_even_beside_one_of_that_name(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "BUILTIN_FOLDER", pristine)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "builtin").mkdir()
    assert checkpoint.load("builtin").path == pristine
    assert "config.json" in refusal("./builtin").message
    assert "only a model from the hub" in refusal("builtin", revision="main").message
    monkeypatch.setattr(source, "BUILTIN_FOLDER", tmp_path)
    assert "missing from this installation" in refusal("builtin").message


@pytest.mark.gpu
def test_on_a_card_the_model_is_the_same_and_stays_tied(pristine: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    loaded = checkpoint.load(str(pristine), device="cuda", progress=lambda *report: seen.append(report))
    assert loaded.device == torch.device("cuda", 0)
    assert {tensor.device for tensor in [*loaded.model.parameters(), *loaded.model.buffers()]} == {
        loaded.device
    }
    here = checkpoint.load(str(pristine), device="cpu").model
    assert network.ties(loaded.model) == network.ties(here)
    torch.testing.assert_close(logits_of(loaded.model), logits_of(here), atol=2e-2, rtol=1e-3)
    assert seen[-1][1] == seen[-1][2]


def test_a_signal_is_not_taken_for_a_broken_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is interrupted may complain about itself on its way out."""
    folder = tiny_checkpoint(tmp_path / "model")

    def build(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("trying to pop from empty mode stack")

    monkeypatch.setattr(DiffusionGemmaForBlockDiffusion, "__init__", build)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.load(str(folder))
