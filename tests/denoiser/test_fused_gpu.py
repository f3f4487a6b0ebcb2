"""The fused denoiser on a card: compiled kernels and real tiles against the reference, in fp32 and bf16."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from passes import Pair, pair
from tiny import tiny_model

from dgen.denoiser.capture import capture
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.engine.engine import Engine
from dgen.sampler import kernels_for

pytestmark = pytest.mark.gpu
NEAR = 1e-4
WORSE = 1.5  # how far our bf16 may lie from fp32, as a multiple of transformers'

CONFIGS = {
    # the smallest of everything: one head, one expert, heads of 16
    "smallest": (
        {
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "global_head_dim": 16,
            "num_experts": 1,
            "top_k_experts": 1,
            "canvas_length": 1,
            "window": 2,
        },
        {0: 1, 1: 2, 2: 5},
    ),
    # sizes that no tile divides, groups of three, biases, nothing tied
    "odd": (
        {
            "hidden_size": 72,
            "intermediate_size": 56,
            "num_attention_heads": 6,
            "head_dim": 24,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 3,
            "global_head_dim": 48,
            "num_experts": 5,
            "top_k_experts": 3,
            "moe_intermediate_size": 40,
            "layers": "ssf",
            "canvas_length": 7,
            "window": 9,
            "tied": False,
            "attention_bias": True,
        },
        {0: 8, 1: 9, 2: 10, 3: 1, 4: 40},
    ),
    "middle": (
        {
            "hidden_size": 128,
            "intermediate_size": 96,
            "head_dim": 64,
            "global_head_dim": 128,
            "canvas_length": 32,
            "window": 24,
            "layers": "sfsf",
        },
        {0: 23, 1: 24, 2: 100},
    ),
    # the released model's heads and canvas: wide attention in groups of rows, experts with hundreds of tokens
    "released": (
        {
            "hidden_size": 256,
            "intermediate_size": 128,
            "num_attention_heads": 16,
            "head_dim": 256,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "global_head_dim": 512,
            "num_experts": 16,
            "top_k_experts": 4,
            "moe_intermediate_size": 64,
            "vocab": 2048,
            "canvas_length": 256,
            "window": 128,
            "max_position_embeddings": 2048,
        },
        {0: 100, 1: 127, 2: 700, 3: 129},
    ),
}


def model_of(name: str, dtype: torch.dtype = torch.float32):
    """On the card; in bf16 all but what transformers keeps in fp32 (positions' frequencies, the embedding's scale)."""
    model = tiny_model(seed=5, **CONFIGS[name][0])[0].to("cuda")
    return model if dtype == torch.float32 else in_dtype(model, dtype)


def in_dtype(model, dtype: torch.dtype):
    made, kept = deepcopy(model).to(dtype), model.state_dict().keys()
    for buffer, value in model.named_buffers():
        if buffer not in kept:
            owner, _, last = buffer.rpartition(".")
            setattr(made.get_submodule(owner), last, value.clone())
    return made


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("name", CONFIGS)
def test_fp32_is_the_reference(name):
    lengths = CONFIGS[name][1]
    both = pair(model_of(name), num_slots=len(lengths), graphs=name != "odd")  # of commits
    both.prefill(lengths)
    assert both.walk([*lengths][::-1]) < NEAR
    both.denoise([1])
    assert max(both.apart[-1]) < NEAR


@pytest.mark.parametrize("name", ["odd", "middle", "released"])
def test_bf16_lies_as_near_to_fp32_as_transformers_does(name):
    """Same weights (rounded to bf16) and inputs; the root mean square of the distances over all slots and passes."""
    lengths = CONFIGS[name][1]
    rounded = model_of(name, torch.bfloat16)
    truth = in_dtype(rounded, torch.float32)
    found = {}
    for who, kind in (("ours", FusedDenoiser), ("theirs", ReferenceDenoiser)):
        both = Pair(kind(rounded, num_slots=len(lengths)), ReferenceDenoiser(truth, num_slots=len(lengths)))
        both.prefill(lengths)
        both.walk([*lengths], canvases=2)
        both.denoise([1])
        found[who] = torch.tensor([d for each in both.apart for d in each]).square().mean().sqrt().item()
    assert found["theirs"] > 0
    assert found["ours"] <= WORSE * found["theirs"], found


def busy(name: str, dtype: torch.dtype, **settings) -> tuple[FusedDenoiser, Pair]:
    """A denoiser whose slots hold prompts and self-conditioning."""
    lengths = CONFIGS[name][1]
    denoiser = FusedDenoiser(model_of(name, dtype), num_slots=len(lengths), **settings)
    both = Pair(denoiser, denoiser)
    for slot, length in lengths.items():
        denoiser.prefill(slot, both.ids(length))
    logits = torch.randn(len(lengths) * both.canvas_len, denoiser.vocab_size, device="cuda") * 3
    probs = logits.softmax(-1).to(denoiser.probs_dtype)
    heat = torch.ones(len(lengths), device="cuda")
    denoiser.condition(both.rows(lengths), logits, heat, probs, both.pins([*lengths], 0))
    return denoiser, both


@pytest.mark.parametrize("name", ["odd", "released"])
def test_a_pass_repeats_to_the_bit(name, dtype):
    denoiser, both = busy(name, dtype)
    slots = both.rows(CONFIGS[name][1])
    canvas = both.ids(len(slots), both.canvas_len)
    first = denoiser.denoise(slots, canvas).clone()
    for _ in range(30):
        assert torch.equal(denoiser.denoise(slots, canvas), first)
    graph = capture(denoiser.denoise, slots.clone(), canvas.clone())
    for _ in range(30):
        assert torch.equal(graph.replay(slots, canvas), first)


def test_prefills_and_commits_repeat_to_the_bit(dtype):
    denoiser, both = busy("released", dtype)
    prompt, canvas = both.ids(700), both.ids(3, 256)
    states = []
    for _ in range(6):
        for slot in (2, 0, 1):
            denoiser.prefill(slot, prompt[: 300 + 200 * slot])
        denoiser.commit(both.rows([1, 2, 0]), canvas)
        states.append([t.clone() for layer in denoiser._cache.layers for t in layer])
    for state in states[1:]:
        assert all(torch.equal(a, b) for a, b in zip(state, states[0], strict=True))


def test_a_slot_full_of_nan_reaches_no_other(dtype):
    denoiser, both = busy("odd", dtype)
    canvas = both.ids(4, both.canvas_len)
    slots = both.rows([0, 1, 2, 4])
    clean = denoiser.denoise(slots, canvas).view(4, -1).clone()
    denoiser._soft[1] = float("nan")
    spoilt = denoiser.denoise(slots, canvas).view(4, -1)
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[[0, 2, 3]], clean[[0, 2, 3]])
    denoiser.release(1)
    denoiser.prefill(1, both.ids(9))
    assert not denoiser.denoise(slots, canvas).isnan().any()


@pytest.mark.usefixtures("poisoned")
def test_what_compiling_leaves_behind_reaches_no_pass(dtype):
    """While kernels are compiled nothing runs that would overwrite fresh memory; padding would keep its NaN."""
    denoiser = FusedDenoiser(model_of("middle", dtype), num_slots=3)
    engine = Engine(denoiser, kernels_for("auto", denoiser.device))
    engine.prepare()
    assert denoiser._soft.isfinite().all()
    assert not denoiser._cache.lengths.any()
    assert not any(t.isnan().any() for layer in denoiser._cache.layers for t in layer)
    assert engine._state.ids.max() < denoiser.vocab_size


def test_a_context_is_taken_from_what_the_card_has_free():
    free = torch.cuda.mem_get_info()[0]
    denoiser = FusedDenoiser(model_of("smallest"), num_slots=2)
    assert denoiser.max_context == 512
    assert free > 0
