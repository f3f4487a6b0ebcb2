"""The reference denoiser: transformers' forward behind the Denoiser contract."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from dgen.denoiser import reference
from dgen.denoiser.reference import ReferenceDenoiser

CANVAS = 6


def ids_of(*values):
    return torch.tensor(values)


def canvas_of(seed):
    return torch.randint(14, 400, (1, CANVAS), generator=torch.Generator().manual_seed(seed))


def no_pins(m=1):
    return torch.zeros(m, CANVAS, dtype=torch.bool)


@pytest.fixture
def model():
    return tiny_model(seed=4, canvas_length=CANVAS, window=8, layers="ssf")[0]


def test_logits_are_fp32_and_capped(model):
    denoiser = ReferenceDenoiser(model)
    denoiser.prefill(0, ids_of(2, 50, 60))
    logits = denoiser.denoise(ids_of(0), canvas_of(0))
    assert logits.shape == (CANVAS, denoiser.vocab_size)
    assert logits.dtype == torch.float32
    assert logits.abs().max() <= 30.0


def test_self_conditioning_changes_the_next_pass_and_ends_with_the_canvas(model):
    denoiser = ReferenceDenoiser(model)
    denoiser.prefill(0, ids_of(2, 50, 60))
    first = denoiser.denoise(ids_of(0), canvas_of(0))
    denoiser.condition(ids_of(0), first, torch.tensor([0.8]), None, no_pins())
    assert not torch.equal(denoiser.denoise(ids_of(0), canvas_of(0)), first)
    denoiser.release(0)
    denoiser.prefill(0, ids_of(2, 50, 60))
    assert torch.equal(denoiser.denoise(ids_of(0), canvas_of(0)), first)
    denoiser.condition(ids_of(0), first, torch.tensor([0.8]), None, no_pins())
    denoiser.commit(ids_of(0), canvas_of(1))
    fresh = ReferenceDenoiser(model)
    fresh.prefill(0, ids_of(2, 50, 60))
    fresh.commit(ids_of(0), canvas_of(1))
    assert torch.equal(denoiser.denoise(ids_of(0), canvas_of(2)), fresh.denoise(ids_of(0), canvas_of(2)))


def test_a_pinned_row_has_no_self_conditioning(model):
    denoiser = ReferenceDenoiser(model)
    denoiser.prefill(0, ids_of(2, 50, 60))
    first = denoiser.denoise(ids_of(0), canvas_of(0))
    signals = []
    hook = model.model.decoder.self_conditioning.register_forward_hook(
        lambda _m, args, _o: signals.append(args[1])
    )
    pinned = no_pins()
    pinned[0, 2] = True
    denoiser.condition(ids_of(0), first, torch.tensor([0.8]), None, pinned)
    denoiser.denoise(ids_of(0), canvas_of(0))
    hook.remove()
    assert torch.equal(signals[0][0, 2], torch.zeros_like(signals[0][0, 2]))
    assert (signals[0][0, [0, 1, 3, 4, 5]] != 0).any(dim=-1).all()
    embedding = model.model.decoder.embed_tokens
    want = (first.double() / 0.8).softmax(-1) @ embedding.weight.double() * embedding.embed_scale.double()
    assert torch.allclose(signals[0][0, 0].double(), want[0], rtol=1e-4, atol=1e-5)


def test_temperature_zero_conditions_on_the_argmax(model):
    denoiser = ReferenceDenoiser(model)
    denoiser.prefill(0, ids_of(2, 50, 60))
    first = denoiser.denoise(ids_of(0), canvas_of(0))
    signals = []
    hook = model.model.decoder.self_conditioning.register_forward_hook(
        lambda _m, args, _o: signals.append(args[1])
    )
    denoiser.condition(ids_of(0), first, torch.tensor([0.0]), None, no_pins())
    denoiser.denoise(ids_of(0), canvas_of(0))
    hook.remove()
    assert torch.allclose(signals[0][0], model.model.decoder.embed_tokens(first.argmax(-1)), atol=1e-5)


def test_slots_hold_their_own_prefix_and_signal(model):
    shared = ReferenceDenoiser(model, num_slots=3)
    prompts = {0: ids_of(2, 50, 60), 1: ids_of(2, *range(20, 40)), 2: ids_of(77)}
    for slot, prompt in prompts.items():
        shared.prefill(slot, prompt)
    canvas = torch.cat([canvas_of(slot) for slot in prompts])
    first = shared.denoise(ids_of(0, 1, 2), canvas)
    shared.condition(
        ids_of(0, 2),
        torch.cat([first[:CANVAS], first[2 * CANVAS :]]),
        torch.tensor([0.8, 0.5]),
        None,
        no_pins(2),
    )
    second = shared.denoise(ids_of(2, 0, 1), canvas[[2, 0, 1]])
    for slot, prompt in prompts.items():
        alone = ReferenceDenoiser(model)
        alone.prefill(0, prompt)
        logits = alone.denoise(ids_of(0), canvas[slot : slot + 1])
        assert torch.equal(first[slot * CANVAS : (slot + 1) * CANVAS], logits)
        if slot != 1:
            alone.condition(ids_of(0), logits, torch.tensor([0.8 if slot == 0 else 0.5]), None, no_pins())
        place = [2, 0, 1].index(slot)
        again = alone.denoise(ids_of(0), canvas[slot : slot + 1])
        assert torch.equal(second[place * CANVAS : (place + 1) * CANVAS], again)


@pytest.mark.parametrize("chunk", [1, 3, 8, 11])
def test_a_prompt_in_chunks_is_the_prompt_at_once(model, monkeypatch, chunk):
    prompt = torch.randint(14, 400, (30,), generator=torch.Generator().manual_seed(9))
    whole = ReferenceDenoiser(model)
    whole.prefill(0, prompt)
    monkeypatch.setattr(reference, "PREFILL_CHUNK", chunk)
    parts = ReferenceDenoiser(model)
    parts.prefill(0, prompt)
    a, b = whole.denoise(ids_of(0), canvas_of(0)), parts.denoise(ids_of(0), canvas_of(0))
    assert ((a - b).norm() / a.norm()).item() < 1e-5


def test_transformers_own_forward_is_left_as_it_was(model):
    from transformers import DynamicCache

    denoiser = ReferenceDenoiser(model)
    denoiser.prefill(0, ids_of(2, 50, 60))
    denoiser.condition(
        ids_of(0), denoiser.denoise(ids_of(0), canvas_of(0)), torch.tensor([0.8]), None, no_pins()
    )
    untouched = tiny_model(seed=4, canvas_length=CANVAS, window=8, layers="ssf")[0]
    outputs = []
    for each in (model, untouched):
        cache = {denoiser._cache_arg: DynamicCache(config=each.config.get_text_config())}
        ones = torch.ones(1, 3, dtype=torch.bool)
        outputs.append(
            each(
                input_ids=torch.tensor([[2, 50, 60]]),
                attention_mask=each.model.encoder.create_masks_for_generate(
                    config=each.config,
                    inputs_embeds=torch.empty(1, 3, 0),
                    attention_mask=ones,
                    position_ids=torch.arange(3)[None],
                    **cache,
                ),
                decoder_input_ids=canvas_of(0),
                **cache,
            ).logits
        )
    assert torch.equal(*outputs)
