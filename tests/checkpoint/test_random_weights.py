"""Architectures as files, and models with random weights made of them."""

from __future__ import annotations

import pytest
import torch

from dgen.checkpoint import memory, network
from dgen.checkpoint.architecture import Architecture, architecture_names, read_architecture
from dgen.checkpoint.random_weights import build_empty, build_random
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.errors import CheckpointError, SettingsError, UsageError
from dgen.layers import preset_names


@pytest.fixture(scope="module")
def tiny():
    return build_random(read_architecture("tiny"), device="cpu")


@pytest.fixture(scope="module")
def released():
    return build_empty(read_architecture("26b-a4b"), dtype=torch.bfloat16)


def test_the_released_sizes_make_the_released_number_of_parameters(released):
    text = sum(weight.numel() for name, weight in released.named_parameters() if "vision" not in name)
    assert 25.2e9 < text < 25.3e9
    assert sum(weight.nbytes for weight in released.parameters()) < 51e9
    assert all(weight.dtype == torch.bfloat16 for weight in released.parameters())


def test_the_released_layers_are_five_sliding_to_one_full(released):
    config = released.config.text_config
    assert config.layer_types == (["sliding_attention"] * 5 + ["full_attention"]) * 5
    sliding, full = (released.model.decoder.layers[index].self_attn for index in (0, 5))
    assert sliding.q_proj.weight.shape == (16 * 256, 2816)
    assert sliding.k_proj.weight.shape == sliding.v_proj.weight.shape == (8 * 256, 2816)
    assert full.q_proj.weight.shape == (16 * 512, 2816)
    assert full.k_proj.weight.shape == (2 * 512, 2816)
    assert full.v_proj is None
    assert (sliding.sliding_window, full.sliding_window) == (1024, None)
    assert released.model.decoder.layers[0].experts.gate_up_proj.shape == (128, 2 * 704, 2816)
    assert (config.max_position_embeddings, released.config.canvas_length) == (262144, 256)


def test_encoder_and_decoder_share_their_weights_and_the_head_is_the_embedding(released, tiny):
    for model in (released, tiny):
        parts = model.model
        assert (
            parts.encoder.language_model.layers[0].mlp.up_proj.weight
            is parts.decoder.layers[0].mlp.up_proj.weight
        )
        assert model.lm_head.weight is parts.decoder.embed_tokens.weight
        assert parts.encoder.language_model.embed_tokens.weight is parts.decoder.embed_tokens.weight
    assert len(network.ties(tiny)) == len(network.ties(build_empty(read_architecture("tiny"))))


def test_buffers_are_those_that_transformers_computes(tiny):
    rotary = tiny.model.decoder.rotary_emb
    expected = 1.0 / 10_000.0 ** (torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(rotary.sliding_attention_inv_freq, expected)
    assert tiny.model.decoder.embed_tokens.embed_scale == 8.0  # the root of 64
    for layers in (tiny.model.decoder.layers, tiny.model.encoder.language_model.layers):
        assert all(layer.layer_scalar == 1 for layer in layers)
    assert not [name for name, tensor in tiny.named_buffers() if tensor.is_meta]


def test_the_same_seed_makes_the_same_weights_and_another_others(tiny):
    again, other = (build_random(read_architecture("tiny"), device="cpu", seed=seed) for seed in (0, 1))
    first = tiny.lm_head.weight
    assert torch.equal(first, again.lm_head.weight)
    assert not torch.equal(first, other.lm_head.weight)


def test_logits_are_sane_and_every_expert_is_used(tiny):
    from dgen.bench.experts import routed

    denoiser = ReferenceDenoiser(tiny)
    generator = torch.Generator().manual_seed(0)
    ids, canvas = (torch.randint(100, 3000, (1, size), generator=generator) for size in (100, 32))
    denoiser.prefill(0, ids[0])
    with routed(tiny, keep="all") as seen:
        logits = denoiser.denoise(torch.tensor([0]), canvas)
    assert logits.isfinite().all()
    assert 1 < logits.std() < 10
    assert seen.mean == 8


def test_memory_is_checked_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda _: 10**9)
    with pytest.raises(
        CheckpointError, match=r"26b-a4b needs 50\.\d GB in main memory as bfloat16, and 1\.0 GB"
    ):
        build_random(read_architecture("26b-a4b"), device="cpu", dtype="bfloat16")


def test_a_dtype_is_that_of_every_weight():
    model = build_random(read_architecture("tiny"), device="cpu", dtype="bfloat16")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model.model.decoder.rotary_emb.sliding_attention_inv_freq.dtype == torch.float32
    with pytest.raises(UsageError, match="unknown dtype"):
        build_random(read_architecture("tiny"), device="cpu", dtype="int8")


def test_architectures_are_no_presets_and_ship_with_the_package():
    assert {"26b-a4b", "tiny"} <= set(architecture_names())
    assert not set(architecture_names()) & set(preset_names())


def test_a_file_is_an_architecture_too(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("canvas_length = 8\n[text]\nhidden_size = 32\n")
    found = read_architecture(str(path))
    assert (found.name, found.top, found.text) == (str(path), {"canvas_length": 8}, {"hidden_size": 32})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no architecture or file"),
        ("[text", "can't read an architecture"),
        ("canvas_length = 8", "text is no table"),
        ("text = 3", "text is no table"),
        ("vision = 3\n[text]\nhidden_size = 32", "can't read an architecture|vision is no table"),
    ],
)
def test_what_is_no_architecture_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        read_architecture(str(path))
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hiden_size": 3}, "unknown field 'hiden_size' in text of the architecture odd"),
        ({"hidden_size": "wide"}, "describes no model"),
        ({"num_key_value_heads": 0}, "describes no model"),
        ({"sliding_window": 1}, "describes no model: sliding_window is 1"),
    ],
)
def test_fields_that_describe_no_model_are_refused_in_one_line(changes, message):
    tiny = read_architecture("tiny")
    odd = Architecture("odd", tiny.top, {**tiny.text, **changes}, tiny.vision)
    with pytest.raises(SettingsError, match=message) as caught:
        build_empty(odd)
    assert "\n" not in caught.value.message
