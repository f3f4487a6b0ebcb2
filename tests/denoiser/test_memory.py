"""What context the memory holds, in numbers alone: no pass runs here."""

from __future__ import annotations

import re

import pytest
import torch
from tiny import tiny_model

from dgen.denoiser import fused, need
from dgen.denoiser.choice import build_denoiser, why_reference
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.errors import SettingsError

pytestmark = pytest.mark.usefixtures("interpreter")
MOST = 512  # the tiny model's positions


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(fused, "PREFILL_CHUNK", 16)


def room_for(model, positions: int, num_slots: int = 1) -> int:
    """Bytes that hold a context of so many positions, and a few more, which hold no further one."""
    return FusedDenoiser(model, num_slots=num_slots, max_context=64)._need().bytes(positions) + 10


def hinted(error: SettingsError) -> int:
    return int(re.search(r"--max-context (\d+) fits", error.hint)[1])


KINDS = {
    "fp32": ({}, torch.float32),
    "bf16": ({}, torch.bfloat16),
    "wide heads": ({"global_head_dim": 512}, torch.bfloat16),
}


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_context_hinted_at_fits_and_one_position_more_does_not(kind, num_slots):
    settings, dtype = KINDS[kind]
    model = tiny_model(**settings)[0].to(dtype)
    free = room_for(model, 100, num_slots)
    with pytest.raises(SettingsError) as caught:
        FusedDenoiser(model, num_slots=num_slots, max_context=MOST, free=free)
    assert hinted(caught.value) == 100
    assert FusedDenoiser(model, num_slots=num_slots, max_context=100, free=free).max_context == 100
    with pytest.raises(SettingsError):
        FusedDenoiser(model, num_slots=num_slots, max_context=101, free=free)


def test_a_refusal_names_context_slots_need_and_what_is_free():
    model = tiny_model()[0]
    with pytest.raises(SettingsError) as caught:
        FusedDenoiser(model, max_context=200, free=1_600_000)
    assert re.fullmatch(
        r"a context of 200 positions in 1 slot needs \d+\.\d GB beside the weights, and 0\.0 GB are free",
        caught.value.message,
    )
    assert caught.value.hint == "Free some memory."
    with pytest.raises(SettingsError) as caught:
        FusedDenoiser(model, num_slots=2, max_context=200, free=1_600_000)
    assert "in 2 slots" in caught.value.message
    assert caught.value.hint == "Free some memory. Or take fewer --slots."


def test_a_context_is_cut_silently_only_where_none_was_asked_for():
    model = tiny_model()[0]
    free = room_for(model, 100)
    assert FusedDenoiser(model, free=free).max_context == 100
    with pytest.raises(SettingsError, match="a context of 101 positions"):
        FusedDenoiser(model, max_context=101, free=free)
    assert FusedDenoiser(model, free=1 << 40).max_context == MOST
    assert FusedDenoiser(model, max_context=77, free=1 << 40).max_context == 77
    assert FusedDenoiser(model, max_context=10 * MOST, free=1 << 40).max_context == MOST


def test_less_than_two_canvases_is_no_context():
    model = tiny_model(canvas_length=40)[0]
    with pytest.raises(SettingsError) as caught:
        FusedDenoiser(model, free=room_for(model, 79))
    assert caught.value.hint == "Free some memory."
    assert FusedDenoiser(model, free=room_for(model, 80)).max_context == 80


def test_what_was_reckoned_is_what_is_allocated(monkeypatch):
    model = tiny_model()[0]
    taken = []
    for name in ("empty", "zeros"):
        plain = getattr(torch, name)

        def counted(*args, _plain=plain, **kwargs):
            tensor = _plain(*args, **kwargs)
            taken.append(tensor.nbytes)
            return tensor

        monkeypatch.setattr(torch, name, counted)
    denoiser = FusedDenoiser(model, num_slots=3, max_context=100)
    reckoned = denoiser._need().bytes(100) - need.RESERVE
    softmax = 3 * denoiser.canvas_len * denoiser.vocab_size * 4  # the sampler's, made in every step
    lists = need.most_rows(3, denoiser.canvas_len) * 4  # int32 counts aside
    assert abs(reckoned - softmax - sum(taken)) < lists + 1024


def test_the_reference_runs_where_no_card_is_and_fused_where_it_is_asked_for():
    model = tiny_model()[0]
    assert why_reference(model) == "the device is cpu, not cuda"
    assert isinstance(build_denoiser(model), ReferenceDenoiser)
    assert isinstance(build_denoiser(model, denoiser="reference"), ReferenceDenoiser)
    made = build_denoiser(model, denoiser="fused", num_slots=2, max_context=90)
    assert (made.name, made.num_slots, made.max_context, made.capturable) == ("fused", 2, 90, True)
    with pytest.raises(SettingsError, match="unknown denoiser 'quick'"):
        build_denoiser(model, denoiser="quick")


def test_fewer_slots_are_taken_where_they_leave_a_context(monkeypatch):
    monkeypatch.setattr("dgen.denoiser.choice.LEAST_CONTEXT", 300)
    model = tiny_model()[0]
    free = room_for(model, 400, num_slots=2)

    def made(**settings):
        return build_denoiser(model, denoiser="fused", free=free, **settings)

    two = made(num_slots=8, fewer=True)
    assert (two.num_slots, two.max_context) == (2, 400)
    assert made(num_slots=8, fewer=True, max_context=MOST).num_slots == 1
    with pytest.raises(SettingsError, match="in 8 slots"):
        made(num_slots=8, max_context=MOST)
    with pytest.raises(SettingsError, match="in 1 slot"):
        build_denoiser(model, denoiser="fused", num_slots=8, fewer=True, free=1000)


def test_fused_without_triton_or_card_is_refused(monkeypatch):
    monkeypatch.setattr("dgen.denoiser.fused.is_interpreted", lambda: False)
    with pytest.raises(SettingsError, match="CUDA device"):
        build_denoiser(tiny_model()[0], denoiser="fused")
    monkeypatch.setattr("dgen.denoiser.fused.has_triton", lambda: False)
    with pytest.raises(SettingsError, match="not installed"):
        build_denoiser(tiny_model()[0], denoiser="fused")
