"""A slot that grows and is copied holds what one pass over the whole prompt would have written, in both bodies."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser

CANVAS, WINDOW = 3, 4  # small: the interpreter takes a second a pass


def fused(model, num_slots):
    return FusedDenoiser(model, num_slots=num_slots, max_context=64, graphs=False)


def reference(model, num_slots):
    return ReferenceDenoiser(model, num_slots=num_slots)


@pytest.fixture(params=[reference, fused], ids=["reference", "fused"])
def body(request):
    if request.param is fused:
        request.getfixturevalue("interpreter")
    return request.param


@pytest.fixture
def model():
    return tiny_model(seed=4, canvas_length=CANVAS, window=WINDOW, layers="sf")[0]


def random_ids(n, seed):
    return torch.randint(14, 400, (n,), generator=torch.Generator().manual_seed(seed))


def logits_of(denoiser, slot, seed=0):
    return denoiser.denoise(torch.tensor([slot]), random_ids(CANVAS, seed)[None]).clone()


def assert_near(one, other):
    # The same passes in other pieces: sums of another order, nothing else.
    assert ((one - other).norm() / one.norm()).item() < 1e-5


@pytest.mark.parametrize("first", [2, WINDOW + 2], ids=["within", "beyond"])
def test_a_copy_that_goes_on_is_the_prompt_at_once_and_leaves_its_source_alone(model, body, first):
    prompt = random_ids(first + 3, seed=1)
    parts, whole = body(model, 2), body(model, 1)
    parts.prefill(1, prompt[:first])
    before = logits_of(parts, 1)
    parts.copy(1, 0)
    parts.extend(0, prompt[first:])
    parts.commit(torch.tensor([0]), random_ids(CANVAS, 3)[None])
    assert torch.equal(logits_of(parts, 1), before)
    whole.prefill(0, prompt)
    whole.commit(torch.tensor([0]), random_ids(CANVAS, 3)[None])
    assert_near(logits_of(whole, 0), logits_of(parts, 0))
    parts.release(0)
    parts.copy(1, 0)
    parts.extend(1, prompt[first:])  # now the source goes on, and the copy stays
    assert torch.equal(logits_of(parts, 0), before)


def test_a_copy_takes_nothing_of_its_slots_last_tenant_and_no_self_conditioning(model, body):
    denoiser = body(model, 2)
    fresh = body(model, 1)
    prompt = random_ids(4, seed=1)
    fresh.prefill(0, prompt)
    denoiser.prefill(0, random_ids(7, seed=5))
    logits = logits_of(denoiser, 0)
    probs = (logits.float() / 0.8).softmax(-1).to(logits.dtype)
    no_pins = torch.zeros(1, CANVAS, dtype=torch.bool)
    denoiser.condition(torch.tensor([0]), logits, torch.tensor([0.8]), probs, no_pins)
    denoiser.prefill(1, prompt)
    denoiser.release(0)
    denoiser.copy(1, 0)
    assert torch.equal(logits_of(denoiser, 0), logits_of(fresh, 0))
