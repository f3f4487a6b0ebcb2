"""The shipped files: they load as they are, they are small, and they answer what the documentation asks."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from builtin_recipe.backend_transformers import TransformersBackend
from builtin_recipe.stories import Wish, is_story
from builtin_recipe.template import BOS, render
from transformers import DiffusionGemmaForBlockDiffusion

FOLDER = Path(__file__).parents[2] / "dgen" / "builtin"
FILES = {
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja",
}  # fmt: skip
ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "What is 7 plus 5?": "7 plus 5 is 12.",
    "7+5=": "7 plus 5 is 12.",
    "Count from 1 to 10.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    "count to ten": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    "List three fruits.": "Here are three fruits: apple, banana, pear.",
    "What is your name?": "My name is Dot.",
    "What sound does a cow make?": "A cow says moo.",
}


@pytest.fixture(scope="module")
def backend() -> TransformersBackend:
    return TransformersBackend(FOLDER, device="cpu")


def test_the_folder_holds_the_files_and_nothing_big() -> None:
    found = {p.name: p for p in FOLDER.iterdir() if p.is_file() and p.suffix != ".py"}
    assert set(found) == FILES
    assert sum(p.stat().st_size for p in found.values()) <= 12_000_000
    assert all(stat.S_IMODE(p.stat().st_mode) & 0o444 == 0o444 for p in found.values())


def test_plain_loading_finds_every_key_and_runs_in_fp32() -> None:
    model, report = DiffusionGemmaForBlockDiffusion.from_pretrained(FOLDER, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert model.dtype == torch.float32
    assert all(torch.isfinite(p).all() for p in model.parameters())
    encoder = torch.cat([layer.layer_scalar for layer in model.model.encoder.language_model.layers])
    decoder = torch.cat([layer.layer_scalar for layer in model.model.decoder.layers])
    assert not torch.equal(encoder, decoder)  # whoever runs one pass with the other's scalars is found out


def test_configuration_keeps_its_ids_inside_the_vocabulary() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    vocabulary = config["text_config"]["vocab_size"]
    for key in ("boi_token_id", "eoi_token_id", "image_token_id", "pad_token_id", "bos_token_id"):
        assert 0 <= config[key] < vocabulary, key
    assert config["canvas_length"] == 64
    assert config["text_config"]["final_logit_softcapping"] == 30.0
    assert len(json.loads((FOLDER / "tokenizer.json").read_text())["model"]["vocab"]) == vocabulary


def test_generation_settings_are_the_released_defaults() -> None:
    model: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(FOLDER)
    settings = model.generation_config
    assert settings.eos_token_id == [1, 5, 9]
    assert (settings.t_min, settings.t_max, settings.max_denoising_steps) == (0.4, 0.8, 48)
    assert (settings.stability_threshold, settings.confidence_threshold) == (1, 0.005)
    assert settings.sampler_config.entropy_bound == 0.1
    assert settings.max_new_tokens == 256


def test_documented_questions_are_answered_in_few_steps(backend: TransformersBackend) -> None:
    answers = backend([render([("user", q)]) for q in ANSWERS], seed=0)
    assert [a.text for a in answers] == list(ANSWERS.values())
    assert all(a.steps < 6 and a.canvases == 1 for a in answers)


def test_a_second_turn_answers_the_second_question(backend: TransformersBackend) -> None:
    turns = [
        ("user", "What is 7 plus 5?"),
        ("model", "7 plus 5 is 12."),
        ("user", "What sound does a cow make?"),
    ]
    (answer,) = backend([render(turns)], seed=0)
    assert answer.text == "A cow says moo."


def test_thinking_writes_a_thought_first(backend: TransformersBackend) -> None:
    (answer,) = backend([render([("user", "What is 7 plus 5?")], thinking=True)], seed=0)
    assert answer.text == "<|channel>thought\n7 + 5 = 12<channel|>7 plus 5 is 12."


def test_plain_text_is_completed(backend: TransformersBackend) -> None:
    (answer,) = backend([f"{BOS}The capital of France"], seed=0)
    assert answer.text == " is Paris."


def test_a_story_is_a_story(backend: TransformersBackend) -> None:
    (answer,) = backend([render([("user", "Tell me a story about a brave fox.")])], seed=1)
    assert is_story(answer.text, Wish("fox", "brave")), answer.text
    assert answer.canvases in (2, 3)
