"""Top-k and top-p against a plain loop."""

from __future__ import annotations

import math

import pytest
import torch

from dgen.sampler import filter_logits

INF = float("inf")


def plain(row, t, k, p, softcap=None):
    """The row with dropped entries at -inf, by sorting a Python list."""
    values = [v if softcap is None or math.isinf(v) else softcap * math.tanh(v / softcap) for v in row]
    order = sorted(range(len(row)), key=lambda i: (-values[i], i))
    if k > 0:
        kth = values[order[min(k, len(row)) - 1]]
        order = [i for i in order if values[i] >= kth]
    if p < 1:
        weights = [math.exp((values[i] - values[order[0]]) / max(t, 1e-10)) for i in order]
        kept, mass = [], 0.0
        for i, weight in zip(order, weights, strict=True):
            if kept and mass >= p:
                break
            kept.append(i)
            mass += weight / sum(weights)
        order = kept
    return [row[i] if i in set(order) else -INF for i in range(len(row))]


def run(logits, temps, canvas_len, k, p, **kwargs):
    return filter_logits(
        logits,
        torch.tensor(temps),
        canvas_len,
        top_k=torch.tensor(k),
        top_p=torch.tensor(p, dtype=torch.float32),
        **kwargs,
    )


@pytest.mark.parametrize("k", [0, 1, 5, 39, 40, 100])
@pytest.mark.parametrize("p", [1.0, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_top_k_then_top_p_match_a_plain_loop(generator, k, p, softcap):
    logits = torch.randn(4, 40, generator=generator) * 3
    temps = [0.7, 1.3]
    got = run(logits, temps, 2, [k, k], [p, p], softcap=softcap)
    expected = [plain(row, temps[i // 2], k, p, softcap) for i, row in enumerate(logits.tolist())]
    assert torch.equal(got, torch.tensor(expected))


def test_top_p_acts_on_what_top_k_left():
    # With top-k 2 the first is 4/7 of what is left, enough for 0.55; without it 0.4 is not enough.
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert run(logits, [1.0], 1, [2], [0.55]).isfinite().tolist() == [[True, False, False, False]]
    assert run(logits, [1.0], 1, [0], [0.55]).isfinite().tolist() == [[True, True, False, False]]


def test_ties_at_the_kth_logit_are_kept():
    got = run(torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0]]), [1.0], 1, [2], [1.0])
    assert got.tolist() == [[-INF, 3.0, 2.0, 2.0, 2.0]]


def test_top_p_keeps_the_lower_ids_among_equals_and_no_more_than_it_needs():
    got = run(torch.zeros(1, 10), [1.0], 1, [0], [0.25])
    assert got.isfinite().tolist() == [[True] * 3 + [False] * 7]


def test_the_temperature_decides_the_mass():
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    got = run(logits, [0.2, 5.0], 1, [0, 0], [0.9, 0.9])
    assert got.isfinite().sum(dim=-1).tolist() == [1, 3]


@pytest.mark.parametrize("p", [0.0, 1e-9])
def test_at_least_one_is_kept(p):
    assert run(torch.tensor([[1.0, 5.0, 5.0]]), [0.0], 1, [0], [p]).tolist() == [[-INF, 5.0, -INF]]


def test_each_request_has_its_own_settings(generator):
    logits = torch.randn(8, 30, generator=generator)
    k, p, temps = [0, 3, 0, 7], [1.0, 1.0, 0.3, 0.6], [0.5, 0.6, 0.7, 0.8]
    got = run(logits, temps, 2, k, p)
    expected = [plain(row, temps[i // 2], k[i // 2], p[i // 2]) for i, row in enumerate(logits.tolist())]
    assert torch.equal(got, torch.tensor(expected))
    assert torch.equal(got[:2], logits[:2])


def test_masked_logits_stay_masked():
    logits = torch.tensor([[-INF, 1.0, -INF, 0.5]])
    assert torch.equal(run(logits, [1.0], 1, [3], [0.999]), logits)


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_a_row_without_a_distribution_is_left_for_the_sampler_to_refuse(bad):
    logits = torch.tensor([[1.0, bad, 0.0], [-INF, -INF, -INF]])
    got = run(logits, [1.0], 2, [1], [0.5])
    torch.testing.assert_close(got, logits, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(generator, dtype):
    logits = torch.randn(2, 50, generator=generator).to(dtype)
    got = run(logits, [1.0], 2, [5], [1.0])
    assert got.dtype == dtype
    assert bool(got.isfinite().sum(dim=-1).ge(5).all())


def test_nothing_on_returns_the_same_tensor(generator):
    logits = torch.randn(4, 9, generator=generator)
    assert filter_logits(logits, torch.ones(2), 2) is logits
    assert run(logits, [1.0, 1.0], 2, [0, 0], [1.0, 1.0]) is logits


def test_the_input_is_not_written(generator):
    logits = torch.randn(4, 9, generator=generator)
    before = logits.clone()
    run(logits, [1.0, 1.0], 2, [1, 1], [0.5, 0.5])
    assert torch.equal(logits, before)


def test_the_result_is_the_same_in_tiles(monkeypatch, generator):
    logits = torch.randn(9, 20, generator=generator)
    whole = run(logits, [1.0] * 3, 3, [4, 0, 2], [0.9, 0.5, 1.0])
    monkeypatch.setattr("dgen.sampler.chunks._TILE_ENTRIES", 161)
    assert torch.equal(run(logits, [1.0] * 3, 3, [4, 0, 2], [0.9, 0.5, 1.0]), whole)


@pytest.mark.gpu
def test_the_full_vocabulary_on_a_card(device, generator):
    logits = torch.randn(256, 262144, generator=generator).to(device, torch.bfloat16)
    settings = {"top_k": torch.tensor([50], device=device), "top_p": torch.tensor([0.9], device=device)}
    got = filter_logits(logits, torch.tensor([0.7], device=device), 256, **settings).cpu()
    for i in (0, 100, 255):
        expected = torch.tensor(plain(logits[i].tolist(), 0.7, 50, 0.9))
        assert torch.equal(got[i].float(), expected)
