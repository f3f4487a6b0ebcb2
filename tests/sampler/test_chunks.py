"""The pieces that the kernels share: the softcap in two forms, the first maximum, the tiles."""

from __future__ import annotations

import pytest
import torch

from dgen.sampler.chunks import capped, first_argmax, is_bad, load_capped, row_tiles
from dgen.jit import jit, tl

INF = float("inf")
NAN = float("nan")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, from the interpreter


@jit
def _capped_kernel(x_ptr, out_ptr, softcap, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + index, load_capped(x_ptr, index, index >= 0, softcap, True))


def capped_by_triton(x, softcap, device):
    out = torch.empty(len(x), device=device)
    _capped_kernel[(len(x) // 1024,)](x.to(device), out, softcap, BLOCK=1024)
    return out.cpu()


@pytest.mark.parametrize("softcap", [30.0, 1.0, 50.0])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 0.5, 0.7, 2.0, 12.0, 1e30])
def test_both_softcaps_are_exact_to_a_few_units_in_the_last_place(device, softcap, scale):
    x = torch.linspace(-scale * softcap, scale * softcap, 4096)
    exact = softcap * torch.tanh(x.double() / softcap)
    unit = torch.finfo(torch.float32).eps * exact.abs()
    for form in (capped(x, softcap), capped_by_triton(x, softcap, device)):
        assert bool(((form.double() - exact).abs() <= 4 * unit).all())
        assert bool((form.abs() <= softcap).all())


def test_the_softcap_never_turns_two_logits_round_by_more_than_their_last_places(device):
    x = torch.linspace(-100, 100, 65536)
    form = capped_by_triton(x, 30.0, device)
    assert float((form[:-1] - form[1:]).max()) <= 1e-5


def test_the_softcap_leaves_infinities_and_nan(device):
    x = torch.tensor([INF, -INF, NAN, 1e38] * 256)
    expected = torch.tensor([INF, -INF, NAN, 30.0] * 256)
    for form in (capped(x, 30.0), capped_by_triton(x, 30.0, device)):
        torch.testing.assert_close(form, expected, rtol=0, atol=0, equal_nan=True)


def test_no_softcap_only_widens():
    x = torch.tensor([[1.5, -INF]], dtype=torch.bfloat16)
    assert torch.equal(capped(x, None), x.float())


def test_the_first_of_equal_maxima_is_found_and_always_in_range():
    x = torch.tensor([[1.0, 3.0, 3.0], [-INF, -INF, -INF], [NAN, 1.0, 2.0], [-0.0, 0.0, -1.0]])
    found = first_argmax(x).tolist()
    assert found[:2] == [1, 0]
    assert 0 <= found[2] < 3
    assert found[3] == 0


def test_rows_without_a_distribution_are_told():
    x = torch.tensor([[0.0, -INF], [NAN, 0.0], [INF, 0.0], [-INF, -INF], [INF, -INF]])
    assert is_bad(x).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("vocab", [1, 262144, 2**25])
def test_tiles_cover_each_row_once_and_bound_their_entries(rows, vocab):
    tiles = list(row_tiles(rows, vocab))
    assert [row for tile in tiles for row in range(rows)[tile]] == list(range(rows))
    assert all((tile.stop - tile.start) * vocab <= max(2**24, vocab) for tile in tiles)
