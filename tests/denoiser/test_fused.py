"""The fused denoiser against the reference, in Triton's interpreter: few and small passes that hold much each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from close import assert_close
from passes import Pair, capped, pair
from tiles import WIDE
from tiny import tiny_model

from dgen.denoiser import forward, fused, workspace
from dgen.denoiser.fused import FusedDenoiser, padded
from dgen.denoiser.reference import ReferenceDenoiser

pytestmark = [
    pytest.mark.usefixtures("interpreter", "poisoned"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CANVAS, WINDOW = 3, 4
NEAR = 1e-5  # what the law asks for is 1e-4


def model_of(**changes):
    return tiny_model(**{"seed": 3, "canvas_length": CANVAS, "window": WINDOW, "layers": "sf", **changes})[0]


def test_slots_of_all_lengths_walk_through_three_canvases(monkeypatch):
    monkeypatch.setattr(fused, "PREFILL_CHUNK", 6)  # the longest prompt takes two passes
    both = pair(model_of(tied=False, attention_bias=True, canvas_length=2, num_experts=3), num_slots=3)
    both.prefill({0: WINDOW - 1, 1: WINDOW + 1, 2: 2 * WINDOW})
    assert both.walk([2, 0, 1]) < NEAR


def test_one_slot_with_tied_weights(monkeypatch):
    monkeypatch.setattr(fused, "PREFILL_CHUNK", 1)
    both = pair(model_of())
    both.prefill({0: WINDOW})
    assert both.walk([0], canvases=1) < NEAR


def test_wide_heads_split_keys_row_groups_and_shared_experts(monkeypatch):
    wide = replace(WIDE, splits=2, depth=16, columns=16)
    plain, experts = forward.attention_tiles, forward.expert_tiles

    def attention_tiles(layer, *, rows, n):
        return wide if layer.v_from_k else replace(plain(layer, rows=rows, n=n), splits=2)

    def expert_tiles(**sizes):
        first, second = experts(**sizes)
        return replace(first, tokens=32, few=16, spread=True), replace(second, columns=16, spread=True)

    for room in (forward, workspace):
        monkeypatch.setattr(room, "attention_tiles", attention_tiles)
    monkeypatch.setattr(forward, "expert_tiles", expert_tiles)
    monkeypatch.setattr(workspace, "_MOST_WIDE", 1)  # a row tile at a time
    monkeypatch.setattr(fused, "PREFILL_CHUNK", 18)
    both = pair(model_of(layers="ff"), num_slots=2, max_context=40)
    both.prefill({0: 20, 1: 1})
    both.denoise([1, 0])
    both.commit([0, 1])
    both.denoise([0, 1])
    assert max(max(each) for each in both.apart) < NEAR


def test_a_released_slot_leaves_nothing_to_its_next_tenant():
    model = model_of(layers="f")
    used, fresh = FusedDenoiser(model, num_slots=2), FusedDenoiser(model, num_slots=2)
    both = Pair(used, ReferenceDenoiser(model, num_slots=2))
    both.prefill({0: 7, 1: 2})
    logits = both.denoise([0, 1])
    both.condition([0, 1], logits, 0.7, both.pins([0, 1]))
    prompt, canvas = both.ids(3), both.ids(2, CANVAS)
    used.release(0)
    neighbour = used.denoise(both.rows([1]), canvas[1:]).clone()
    used.prefill(0, prompt)
    fresh.prefill(0, prompt)
    assert torch.equal(used.denoise(both.rows([0]), canvas[:1]), fresh.denoise(both.rows([0]), canvas[:1]))
    assert torch.equal(used.denoise(both.rows([1]), canvas[1:]), neighbour)


def test_padding_behind_a_prompt_reaches_nothing():
    """On a card prompts are padded to the sizes of captured passes; here beyond what the sliding ring holds."""
    model = model_of(layers="sf")
    padded_to, exact = FusedDenoiser(model, num_slots=2), FusedDenoiser(model, num_slots=2)
    both = Pair(padded_to, exact)
    for slot, count in ((0, 3), (1, 11)):
        prompt, more = both.ids(count), both.ids(2)
        for ids in (prompt, more):
            exact.extend(slot, ids)
            rows = torch.nn.functional.pad(ids, (0, 20 - len(ids)))[None]
            padded_to._append(both.rows([slot]), rows, torch.tensor([len(ids)]), captured=False)
    assert torch.equal(padded_to._cache.lengths, exact._cache.lengths)
    for got, want in zip(padded_to._cache.layers, exact._cache.layers, strict=True):
        assert_close(got[0], want[0].double())
        assert_close(got[1], want[1].double())


@pytest.mark.parametrize("n", [*range(1, 1200, 7), 64, 128, 256, 512, 513, 1024, 1025, 4096])
def test_prompts_are_padded_to_few_sizes(n):
    assert n <= padded(n) < n + max(64, n / 4)
    assert padded(padded(n)) == padded(n)
    assert len({padded(m) for m in range(1, 1025)}) == 12
    assert padded(n) == n or padded(n) % 64 == 0


def test_the_spare_slot_takes_part_and_keeps_nothing():
    denoiser = FusedDenoiser(model_of(layers="f"), num_slots=1)
    both = Pair(denoiser, denoiser.__class__(model_of(layers="f"), num_slots=1))
    both.prefill({0: 5})
    canvas = both.ids(3, CANVAS)
    alone = denoiser.denoise(both.rows([0]), canvas[:1]).clone()
    denoiser.commit(both.rows([1, 1]), canvas[1:])
    assert denoiser._cache.lengths.tolist() == [5, 0]
    assert torch.equal(denoiser.denoise(both.rows([0]), canvas[:1]), alone)


def test_self_conditioning_is_dropped_by_commit_and_by_release():
    denoiser = FusedDenoiser(model_of(layers="f"), num_slots=3)
    slots = torch.arange(3)
    probs = torch.full((3 * CANVAS, denoiser.vocab_size), 1 / denoiser.vocab_size)
    denoiser.condition(slots, probs, torch.ones(3), probs, torch.zeros(3, CANVAS, dtype=torch.bool))
    assert denoiser._soft[:3].any(dim=-1).all()
    denoiser.commit(slots[1:2], torch.full((1, CANVAS), 20))
    denoiser.release(2)
    assert denoiser._soft[0].any()
    assert not denoiser._soft[1:3].any()


@pytest.mark.parametrize(
    "error",
    [RuntimeError("operation not permitted when stream is capturing"), torch.OutOfMemoryError("full")],
)
def test_a_pass_that_cannot_be_captured_runs_eagerly(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    denoiser = FusedDenoiser(model_of(layers="f"), num_slots=1)
    monkeypatch.setattr(fused, "capture", refuse)
    monkeypatch.setattr(fused.torch.cuda, "graph_pool_handle", lambda: 1)
    denoiser._graphs = True
    for _ in range(3):  # from the second time on a graph is asked for
        denoiser.prefill(0, torch.tensor([20, 21]))
    assert list(denoiser._refused) == [(1, 2)]
    denoiser.commit(torch.tensor([0]), torch.full((1, CANVAS), 30))
    assert denoiser._cache.lengths.tolist() == [2 + CANVAS, 0]


def test_logits_come_before_the_softcap_in_the_models_dtype():
    model = model_of(layers="f", softcap=5.0)
    both = pair(model)
    both.prefill({0: 2})
    want = both.denoise([0])
    raw = both.denoiser.denoise(both.rows([0]), both.ids(1, CANVAS))
    assert (raw.dtype, both.denoiser.softcap, both.denoiser.probs_dtype) == (
        torch.float32,
        5.0,
        torch.float32,
    )
    assert raw.abs().max() > 5.0 >= want.abs().max()
    assert torch.equal(capped(raw, None), raw)
