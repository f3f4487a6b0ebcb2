"""Whatever keeps a checkpoint from loading is told before a weight is read: one line, and what to do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from breaking import EMBEDDING, SCALAR, WEIGHTS, edit_weights, refusal
from tiny import edit_json, tiny_model

from dgen import checkpoint
from dgen.checkpoint import configuration, network
from dgen.errors import CheckpointError, UsageError


def test_names_that_lead_nowhere_are_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in (
        "./nothing",
        "/no/such/folder",
        "~/no such folder",
        "~nobody-here/x",
        "weights.gguf",
        "./" + "x" * 5000,
    ):
        assert refusal(name).message == f"no folder {name}"
    assert "is a file" in refusal(WEIGHTS).message
    assert "neither a folder nor a hub name" in refusal("no-owner").message
    assert "neither a folder nor a hub name" in refusal("a/b/c").message
    assert "empty" in refusal(" ").message
    assert "revisions" in refusal(folder, revision="main").message


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("mps", "mps is not supported"),
        ("gpu", "unknown device 'gpu'"),
        ("cuda:x", "unknown device"),
        ("", "unknown"),
    ],
)
def test_devices_that_dgen_never_has(pristine: Path, device: str, words: str) -> None:
    error = refusal(pristine, device=device)
    assert words in error.message
    assert isinstance(error, UsageError)


def test_a_card_that_is_not_there(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "device cuda is not there" in refusal(pristine, device="cuda").message
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    error = refusal(pristine, device="cuda:7")
    assert "cuda:7 is not there" in error.message
    assert "cuda:1" in error.hint


def test_float16_is_refused_with_the_reason(pristine: Path) -> None:
    for name in ("float16", "fp16"):
        assert "overflow" in refusal(pristine, dtype=name).message
    assert "unknown dtype 'int8'" in refusal(pristine, dtype="int8").message


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def pickled(folder: Path) -> None:
    no_weights(folder)
    torch.save({}, folder / "pytorch_model.bin")


def stray(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")


def truncated(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def truncated_in_the_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])


def garbage_header(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[8:40] = b"\xff" * 32
    (folder / WEIGHTS).write_bytes(data)


def wrong_offsets(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data.replace(b'"shape":[480,32]', b'"shape":[481,32]', 1))


def lfs_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")


def int8_weights(folder: Path) -> None:
    edit_weights(folder, lambda t: t.update({EMBEDDING: t[EMBEDDING].to(torch.int8)}))


def broken_index(folder: Path) -> None:
    no_weights(folder)
    (folder / "model.safetensors.index.json").write_text("{}")


def index_that_leaves_the_folder(folder: Path) -> None:
    no_weights(folder)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../x.safetensors"}})
    )


def nested(**changes: Any) -> Callable[[Path], None]:
    """Changes in text_config."""

    def change(folder: Path) -> None:
        text = json.loads((folder / "config.json").read_text())["text_config"]
        edit_json(folder / "config.json", text_config={**text, **changes})

    return change


def top(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **changes)


def without(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def holding(file: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / file).write_text(text)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    return lambda folder: edit_weights(folder, change)


BROKEN: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no config": (without("config.json"), ("holds no config.json",)),
    "garbled config": (holding("config.json", "{"), ("config.json", "unreadable: it is no JSON (line 1)")),
    "config is a list": (holding("config.json", "[]"), ("config.json", "no JSON object")),
    "another model": (top(model_type="llama"), ("is a llama", "diffusion_gemma")),
    "no model type": (top(model_type=None), ("without model_type", "diffusion_gemma")),
    "no text config": (top(text_config=None), ("no text_config",)),
    "quantized": (top(quantization_config={"quant_method": "awq"}), ("quantized with awq",)),
    "quantized inside": (nested(quantization_config={"quant_method": "gptq"}), ("quantized with gptq",)),
    "other weight file": (top(transformers_weights="x.safetensors"), ("sets transformers_weights",)),
    "adapter": (holding("adapter_config.json", "{}"), ("adapter",)),
    "odd config value": (nested(hidden_size="wide"), ("config.json", "describes no model")),
    "no experts": (nested(num_experts=None), ("config.json", "describes no model")),
    "no softcap": (nested(final_logit_softcapping=None), ("final_logit_softcapping is None",)),
    "no window": (nested(sliding_window=1), ("sliding_window is 1", "2 is the least")),
    "no canvas": (top(canvas_length=0), ("canvas_length is 0",)),
    "garbled generation config": (
        holding("generation_config.json", "{"),
        ("generation_config.json", "unreadable"),
    ),
    "another sampler": (
        lambda folder: edit_json(
            folder / "generation_config.json", sampler_config={"_cls_name": "OtherConfig"}
        ),
        ("sampler OtherConfig",),
    ),
    "no weights": (no_weights, ("holds no weights",)),
    "pickled weights": (pickled, ("pickled weights only (pytorch_model.bin)",)),
    "no index": (stray, ("model-00001-of-00002.safetensors", "neither")),
    "broken index": (broken_index, ("index.json", "unreadable")),
    "index outside": (index_that_leaves_the_folder, ("../x.safetensors",)),
    "truncated": (truncated, (WEIGHTS, "is damaged", "bytes")),
    "truncated header": (truncated_in_the_header, (WEIGHTS, "no complete safetensors file (100 bytes)")),
    "garbage header": (garbage_header, (WEIGHTS, "damaged header")),
    "wrong offsets": (wrong_offsets, (WEIGHTS, "damaged header")),
    "LFS pointer": (lfs_pointer, ("Git LFS pointer",)),
    "int8 weights": (int8_weights, (EMBEDDING, "I8", "quantized")),
    "missing key": (tensors(lambda t: t.pop(SCALAR)), (f"keys 1 missing ({SCALAR})",)),
    "missing tied key": (tensors(lambda t: t.pop(EMBEDDING)), ("keys 3 missing", EMBEDDING)),
    "unexpected key": (tensors(lambda t: t.update(extra=torch.zeros(1))), ("1 unexpected (extra)",)),
    "many keys": (
        tensors(
            lambda t: [t.pop(key) for key in list(t) if "decoder.layers.1.mlp" in key or "router" in key]
        ),
        ("missing (", "and ", " more)"),
    ),
    "other shape": (
        tensors(lambda t: t.update({EMBEDDING: torch.zeros(479, 32)})),
        ("1 of another shape", "[479, 32]", "[480, 32]"),
    ),
    "no tokenizer": (without("tokenizer.json"), ("holds no tokenizer",)),
    "garbled tokenizer": (holding("tokenizer.json", '{"version": "1.0"'), ("tokenizer", "unreadable")),
    "values that differ though tied": (
        tensors(lambda t: t.update({"lm_head.weight": t[EMBEDDING] + 1})),
        ("ties", "differ"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checkpoint_is_one_line_and_a_hint(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    break_it, words = BROKEN[name]
    break_it(folder)
    if name != "values that differ though tied":
        monkeypatch.setattr(network, "read", lambda *_, **__: pytest.fail("weights were read"))
    error = refusal(folder)
    assert isinstance(error, CheckpointError)
    assert error.exit_code == 3
    for word in words:
        assert word in error.message
    assert capfd.readouterr().err == ""


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    model.save_pretrained(tmp_path)
    tokenizer.add_tokens([f"new{number}" for number in range(100)])
    tokenizer.save_pretrained(tmp_path)
    assert "480 embeddings" in refusal(tmp_path).message


def test_code_that_a_checkpoint_brings_is_never_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for file in (
        "modeling_own.py",
        "configuration_own.py",
        "tokenization_own.py",
        "custom_generate/generate.py",
    ):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    edit_json(
        folder / "config.json",
        auto_map={"AutoConfig": "configuration_own.Own", "AutoModel": "modeling_own.Own"},
    )
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "tokenization_own.Own"]})
    # transformers may refuse a tokenizer that asks for code; it may also load it without.
    with contextlib.suppress(CheckpointError):
        checkpoint.load(str(folder))
    assert not marker.exists()


@pytest.mark.parametrize("version", ["5.16.9", "4.57.0"])
def test_an_old_transformers_is_told_with_both_versions(
    folder: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "installed_transformers", lambda: version)
    error = refusal(folder)
    assert version in error.message
    assert configuration.OLDEST_TRANSFORMERS in error.message
    assert "upgrade" in error.hint


def test_a_checkpoint_from_a_newer_transformers_gets_that_hint_when_it_fails(folder: Path) -> None:
    edit_json(folder / "config.json", transformers_version="99.0.0")
    checkpoint.load(str(folder))
    edit_weights(folder, lambda tensors: tensors.pop(SCALAR))
    assert "99.0.0" in refusal(folder).hint
