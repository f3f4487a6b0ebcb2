"""The softcap has a short way for chunks close to 0 and a long one: which is taken shows in no result."""

from __future__ import annotations

import pytest
import torch

from dgen.sampler import kernels_for
from dgen.sampler.chunks import CHUNK, cap_raw, chunk_max, chunk_sum, load_capped
from dgen.jit import jit, tl

CAP = 30.0
INF = float("inf")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, from the interpreter


@jit
def _both_ways_kernel(x_ptr, out_ptr, at_once_ptr, softcap, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index)
    tl.store(out_ptr + index, cap_raw(x, chunk_max(tl.abs(x)), softcap, False))
    tl.store(at_once_ptr + index, load_capped(x_ptr, index, index >= 0, softcap, True))


@jit
def _folds_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + 2 * tl.program_id(0), chunk_max(x))
    tl.store(out_ptr + 2 * tl.program_id(0) + 1, chunk_sum(x))


@pytest.mark.parametrize("outlier", [0.0, 18.749, 18.75, 40.0, -40.0, -INF])
def test_a_chunk_with_an_outlier_gives_the_same_bits_as_one_without(device, generator, outlier):
    x = torch.randn(4, CHUNK, generator=generator).to(device) * 4
    x[2, 77] = outlier
    ways = torch.empty(2, 4, CHUNK, device=device)
    _both_ways_kernel[(4,)](x, ways[0], ways[1], CAP, BLOCK=CHUNK)
    assert torch.equal(ways[0], ways[1])


def test_a_chunk_is_folded_whole(device, generator):
    x = torch.randint(-9, 9, (3, CHUNK), generator=generator).float().to(device)
    x[torch.arange(3), torch.tensor([0, 511, 1023])] = 50.0
    out = torch.empty(3, 2, device=device)
    _folds_kernel[(3,)](x, out, BLOCK=CHUNK)
    assert torch.equal(out[:, 0], x.amax(dim=-1))
    assert torch.equal(out[:, 1], x.sum(dim=-1))  # integers: exact in any order


@pytest.mark.parametrize("scale", [1.0, 6.0, 30.0])
def test_rows_of_any_reach_equal_the_reference(device, generator, scale):
    logits = torch.randn(4, 5 * CHUNK + 100, generator=generator) * scale
    logits[1, 3000] = 500.0  # one far chunk among near ones
    logits[2, CHUNK : 2 * CHUNK] = -INF  # one without a finite logit
    logits[3, ::3] = -INF
    temps = torch.tensor([0.8, 1e-10], device=device)
    triton, torch_ = (
        kernels_for(name, device).row_stats(logits.to(device), temps, 2, 5, torch.float32, softcap=CAP)
        for name in ("triton", "torch")
    )
    assert torch.equal(triton[0], torch_[0])
    assert torch.equal(triton[1][:2], torch_[1][:2])
    torch.testing.assert_close(triton[2][:2], torch_[2][:2], rtol=0, atol=1e-5)
    torch.testing.assert_close(triton[3][:2], torch_[3][:2], rtol=2e-5, atol=1e-7)
    assert bool(triton[2].isfinite().all())  # where T is next to nothing, logits' last places decide the rest


def test_masked_chunks_under_the_softcap_change_nothing_at_any_temperature(device):
    logits = torch.full((1, 3 * CHUNK), -INF, device=device)
    logits[0, CHUNK + 5], logits[0, CHUNK + 9] = -29.0, -29.5
    for t in (0.0, 1e-10, 0.5, 1e30):
        temps = torch.tensor([t], device=device)
        argmax, draw, entropy, probs = kernels_for("triton", device).row_stats(
            logits, temps, 1, 1, torch.float32, softcap=CAP
        )
        assert int(argmax) == CHUNK + 5
        assert int(draw) in (CHUNK + 5, CHUNK + 9)
        assert bool(entropy.isfinite())
        assert float(probs.sum()) == pytest.approx(1.0)
        assert int((probs > 0).sum()) <= 2


@pytest.mark.parametrize("t", [0.003, 0.05, 0.37, 0.8])
def test_a_peaked_row_close_to_zero_never_has_a_negative_entropy(device, generator, t):
    logits = torch.randn(16, 2 * CHUNK, generator=generator)
    logits[:, 700] = torch.linspace(9.0, 18.7, 16)
    kernels = kernels_for("triton", device)
    temps = torch.tensor([t], device=device)
    _, _, entropy, probs = kernels.row_stats(logits.to(device), temps, 16, 1, torch.bfloat16, softcap=CAP)
    assert bool((entropy >= 0).all())
    exact = torch.softmax(CAP * torch.tanh(logits.double() / CAP) / t, dim=-1)
    expected = -(exact * exact.clamp(min=1e-300).log()).sum(dim=-1)
    torch.testing.assert_close(entropy.cpu().double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(probs.cpu().double(), exact, rtol=1 / 128, atol=1e-7)
