"""What context the memory holds, in numbers alone: no pass runs here."""

from __future__ import annotations

import re

import pytest
import torch
from tiny import tiny_model

from dgen.denoiser import fused
from dgen.denoiser.choice import build_denoiser, why_reference
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.errors import SettingsError

pytestmark = pytest.mark.usefixtures("interpreter")
MOST = 512  # the tiny model's positions


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(fused, "PREFILL_CHUNK", 16)


def fixed(model, num_slots=1) -> int:
    """Bytes that are needed before any KV."""
    denoiser = FusedDenoiser(model, num_slots=num_slots, max_context=64)
    return denoiser._fixed_bytes(MOST)


def hinted(error: SettingsError) -> int:
    return int(re.search(r"--max-context (\d+) fits", error.hint)[1])


KINDS = {
    "fp32": ({}, torch.float32),
    "bf16": ({}, torch.bfloat16),
    "wide heads": ({"global_head_dim": 512}, torch.bfloat16),
}


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [
        "fp32",
        "bf16",
        pytest.param(
            "wide heads",
            marks=pytest.mark.xfail(
                strict=True,
                reason="the buffers of the context asked for are reckoned, not of the one that fits",
            ),
        ),
    ],
)
def test_the_context_hinted_at_fits_and_one_position_more_does_not(kind, num_slots):
    settings, dtype = KINDS[kind]
    model = tiny_model(**settings)[0].to(dtype)
    per_position = 2 * 16 * dtype.itemsize if kind != "wide heads" else 2 * 512 * dtype.itemsize
    free = fixed(model, num_slots) + num_slots * (100 * per_position + 20_000)
    with pytest.raises(SettingsError) as caught:
        FusedDenoiser(model, num_slots=num_slots, max_context=MOST, free=free)
    fits = hinted(caught.value)
    assert 16 <= fits < MOST
    assert FusedDenoiser(model, num_slots=num_slots, max_context=fits, free=free).max_context == fits
    with pytest.raises(SettingsError):
        FusedDenoiser(model, num_slots=num_slots, max_context=fits + 1, free=free)


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
    free = fixed(model) + 40_000
    cut = FusedDenoiser(model, free=free).max_context
    assert 16 <= cut < MOST
    with pytest.raises(SettingsError, match=f"a context of {cut + 1} positions"):
        FusedDenoiser(model, max_context=cut + 1, free=free)
    assert FusedDenoiser(model, free=1 << 40).max_context == MOST
    assert FusedDenoiser(model, max_context=77, free=1 << 40).max_context == 77
    assert FusedDenoiser(model, max_context=10 * MOST, free=1 << 40).max_context == MOST


def test_less_than_two_canvases_is_no_context():
    model = tiny_model(canvas_length=40)[0]
    free = fixed(model) + 6_000
    with pytest.raises(SettingsError) as caught:
        FusedDenoiser(model, free=free)
    assert caught.value.hint == "Free some memory."


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
    kv = 3 * fused.bytes_per_slot(denoiser._weights.layers, 100)
    reckoned = denoiser._fixed_bytes(100) - fused._RESERVE + kv
    softmax = 3 * denoiser.canvas_len * denoiser.vocab_size * 4  # the sampler's, made in every step
    lists = denoiser._max_rows() * 4  # int32 counts aside
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


def test_fused_without_triton_or_card_is_refused(monkeypatch):
    monkeypatch.setattr("dgen.jit.is_interpreted", lambda: False)
    with pytest.raises(SettingsError, match="CUDA device"):
        build_denoiser(tiny_model()[0], denoiser="fused")
    monkeypatch.setattr("dgen.jit.has_triton", lambda: False)
    with pytest.raises(SettingsError, match="triton is not installed"):
        build_denoiser(tiny_model()[0], denoiser="fused")
