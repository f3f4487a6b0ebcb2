"""Noise: the published generator, the documented counter, open intervals, and no two places alike."""

from __future__ import annotations

import math

import pytest
import torch

from dgen.sampler import noise
from dgen.jit import jit, tl
from dgen.sampler.noise import Places, Purpose, derive_seed, gumbel, philox, seed_to_int64

MASK = 0xFFFFFFFF

# Random123's known answers for philox4x32-10: counter, key, words.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def philox_of_integers(seed: int, counter: list[int]) -> list[int]:
    """The generator on Python's integers."""
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def place(*, seed=0, canvas=0, step=0, position=0) -> Places:
    return Places(*(torch.tensor([value]) for value in (seed_to_int64(seed), canvas, step, position)))


@jit
def _words_kernel(place_ptr, words_ptr, gumbel_ptr, PURPOSE: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    seed, canvas = tl.load(place_ptr), tl.load(place_ptr + 1)
    step, position = tl.load(place_ptr + 2), tl.load(place_ptr + 3)
    word = noise.noise_words(seed, canvas, step, position, PURPOSE, index)
    tl.store(words_ptr + index, word.to(tl.int64))
    tl.store(gumbel_ptr + index, noise.noise_gumbel(word))


@jit
def _gumbel_kernel(words_ptr, gumbel_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(gumbel_ptr + index, noise.noise_gumbel(tl.load(words_ptr + index).to(tl.uint32)))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_words(counter, key, expected):
    seed = torch.tensor([seed_to_int64(key[0] | key[1] << 32)])
    words = philox(seed, *(torch.tensor([c]) for c in counter))
    assert [int(word) for word in words] == expected


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 2, 0x0123456789ABCDEF])
def test_words_follow_the_documented_counter(seed):
    got = noise.words(
        place(seed=seed, canvas=5, step=47, position=255), purpose=Purpose.DRAW_WITHIN, count=10
    )
    counter = [255, 47, 5 * 4 + 3]
    expected = [word for block in range(3) for word in philox_of_integers(seed, [block, *counter])]
    assert got[0].tolist() == expected[:10]


@pytest.mark.parametrize(
    ("seed", "canvas", "step", "position"),
    [(0, 0, 0, 0), (-1, 3, 47, 255), (2**63 - 1, 2**30 - 1, 2**31, 2**31 + 5), (-(2**63), 1, 2, 3)],
)
def test_triton_and_torch_give_identical_words(device, seed, canvas, step, position):
    words = torch.empty(64, dtype=torch.int64, device=device)
    values = torch.empty(64, device=device)
    at = torch.tensor([seed, canvas, step, position], device=device)
    _words_kernel[(1,)](at, words, values, PURPOSE=int(Purpose.DRAW_CHUNK), BLOCK=64)
    here = place(seed=seed, canvas=canvas, step=step, position=position)
    expected = noise.words(here, purpose=Purpose.DRAW_CHUNK, count=64)[0]
    assert torch.equal(words.cpu(), expected)
    torch.testing.assert_close(values.cpu(), gumbel(expected), rtol=1e-6, atol=1e-6)


@jit
def _row_kernel(place_ptr, words_ptr, PURPOSE: tl.constexpr, COUNT: tl.constexpr):
    seed, canvas = tl.load(place_ptr), tl.load(place_ptr + 1)
    step, position = tl.load(place_ptr + 2), tl.load(place_ptr + 3)
    word = noise.noise_row(seed, canvas, step, position, PURPOSE, COUNT)
    tl.store(words_ptr + tl.arange(0, COUNT), word.to(tl.int64))


@pytest.mark.parametrize("count", [4, 8, 256, 1024])
def test_a_row_of_words_is_the_words_in_order(device, count):
    words = torch.empty(count, dtype=torch.int64, device=device)
    at = torch.tensor([-7, 3, 47, 255], device=device)
    _row_kernel[(1,)](at, words, PURPOSE=int(Purpose.DRAW_WITHIN), COUNT=count)
    here = place(seed=-7, canvas=3, step=47, position=255)
    assert torch.equal(words.cpu(), noise.words(here, purpose=Purpose.DRAW_WITHIN, count=count)[0])


def edge_words() -> torch.Tensor:
    """Both ends, both sides of the switch between the two formulas, and a spread."""
    switch = 2**28
    ends = [0, 1, 2, 3, 2**24, 2**24 + 1, switch - 1, switch, switch + 1, 2**31 - 1, 2**31, 2**31 + 1]
    ends += [MASK - 2**24, MASK - 1, MASK]
    spread = philox(*(torch.arange(241) * factor for factor in (1, 3, 5, 7, 11)))[0]
    return torch.cat([torch.tensor(ends), spread])


def exact_gumbel(word: int) -> float:
    u = (word + 0.5) / 2**32
    return -math.log(-math.log1p(-u)) if word < 2**31 else -math.log(-math.log((MASK - word + 0.5) / 2**32))


def test_gumbel_noise_is_finite_and_exact_at_both_ends_and_in_the_tail():
    words = edge_words()
    values = gumbel(words)
    assert values.dtype == torch.float32
    assert bool(values.isfinite().all())
    assert float(values.min()) > -3.14
    assert 22.87 < float(values.max()) < 22.88
    expected = torch.tensor([exact_gumbel(int(word)) for word in words], dtype=torch.float64)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)


def test_triton_gumbel_equals_torch_at_the_edges(device):
    words = edge_words()
    values = torch.empty(len(words), device=device)
    _gumbel_kernel[(1,)](words.to(device), values, BLOCK=len(words))
    torch.testing.assert_close(values.cpu(), gumbel(words), rtol=1e-6, atol=1e-6)


def test_gumbel_noise_never_rises_with_its_word():
    words = torch.linspace(0, MASK, 100_001, dtype=torch.float64).long()
    values = gumbel(words)
    assert bool((values[1:] <= values[:-1] + 1e-6).all())


def test_gumbel_noise_has_the_moments_of_its_law():
    values = gumbel(noise.words(place(seed=3), purpose=Purpose.DRAW_CHUNK, count=200_000)).double()
    standard_error = math.pi / math.sqrt(6 * 200_000)
    assert abs(float(values.mean()) - 0.5772156649) < 4 * standard_error
    assert abs(float(values.var()) / (math.pi**2 / 6) - 1) < 0.02


OTHERS = {
    "seed": {"seed": 8},
    "far seed": {"seed": 7 + 2**32},
    "canvas": {"canvas": 1},
    "step": {"step": 1},
    "position": {"position": 1},
}


@pytest.mark.parametrize("name", OTHERS)
def test_noise_of_two_places_is_uncorrelated(name):
    here = noise.words(place(seed=7), purpose=Purpose.DRAW_WITHIN, count=8192)[0]
    there = noise.words(place(**{"seed": 7, **OTHERS[name]}), purpose=Purpose.DRAW_WITHIN, count=8192)[0]
    both = torch.stack([here, there]).double()
    assert abs(float(torch.corrcoef(both)[0, 1])) < 4 / math.sqrt(8192)
    assert int((here == there).sum()) <= 1


def test_noise_of_two_purposes_is_uncorrelated():
    all_words = [noise.words(place(seed=7), purpose=purpose, count=8192)[0] for purpose in Purpose]
    correlation = torch.corrcoef(torch.stack(all_words).double()) - torch.eye(len(all_words))
    assert float(correlation.abs().max()) < 4 / math.sqrt(8192)


def ids(form, seeds, canvases, steps, *, device="cpu", **kwargs):
    at = [torch.tensor(values, device=device) for values in (seeds, canvases, steps)]
    return form(*at, **kwargs)


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 262144, 2**30])
def test_random_ids_are_the_high_half_of_a_64_bit_product(vocab_size):
    got = ids(
        noise.random_ids, [-9, 5], [2, 0], [1, 47], canvas_len=6, vocab_size=vocab_size, purpose=Purpose.INIT
    )
    for row, (seed, canvas, step) in enumerate([(-9, 2, 1), (5, 0, 47)]):
        for position in range(6):
            low, high, _, _ = philox_of_integers(seed, [0, position, step, canvas * 4])
            assert int(got[row, position]) == ((high << 32 | low) * vocab_size) >> 64


@pytest.mark.parametrize("vocab_size", [1, 3, 1000, 262144, 2**30])
@pytest.mark.parametrize("canvas_len", [1, 5, 64])
def test_triton_and_torch_give_identical_random_ids(kernels, device, vocab_size, canvas_len):
    at = ([1, -1, 2**62], [0, 3, 9], [0, 1, 2])
    same = {"canvas_len": canvas_len, "vocab_size": vocab_size, "purpose": Purpose.RENOISE}
    got = ids(kernels.random_ids, *at, device=device, **same)
    assert torch.equal(got.cpu(), ids(noise.random_ids_reference, *at, **same))


def test_random_ids_cover_the_whole_vocabulary_evenly():
    got = ids(noise.random_ids, [11], [0], [0], canvas_len=120_000, vocab_size=12, purpose=Purpose.INIT)
    counts = torch.bincount(got.flatten(), minlength=12).double()
    chi_squared = float(((counts - 10_000) ** 2 / 10_000).sum())
    p = float(torch.special.gammaincc(torch.tensor(11 / 2), torch.tensor(chi_squared / 2)))
    assert len(counts) == 12
    assert p > 0.001


def test_random_ids_refuse_a_vocabulary_without_ids():
    with pytest.raises(ValueError, match="vocab_size"):
        ids(noise.random_ids, [0], [0], [0], canvas_len=4, vocab_size=0, purpose=Purpose.INIT)


def test_no_canvases_give_no_random_ids(kernels, device):
    none = torch.empty(0, dtype=torch.int64, device=device)
    got = kernels.random_ids(none, none, none, canvas_len=4, vocab_size=9, purpose=Purpose.INIT)
    assert got.shape == (0, 4)


def test_the_first_request_has_the_seed_itself_and_the_others_their_own():
    for seed in (0, 1, -1, 2**64 - 1, 123456789):
        assert derive_seed(seed, 0) == seed
        derived = [derive_seed(seed, index) for index in range(2000)]
        assert len(set(derived)) == 2000
        assert all(0 <= value < 2**63 for value in derived[1:])
    shifted = {derive_seed(seed, index) for seed in range(100) for index in range(1, 100)}
    assert len(shifted) == 100 * 99


def test_derived_seeds_stay_what_they_were():
    # splitmix64 of state 0 begins with this published value; a changed derivation would break recorded seeds.
    assert noise._splitmix64(0) == 0xE220A8397B1DCDAF
    expected = noise._splitmix64((0xE220A8397B1DCDAF + 0x9E3779B97F4A7C15) % 2**64) >> 1
    assert derive_seed(0, 1) == expected


@pytest.mark.parametrize("seed", [0, 5, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**70 + 3])
def test_any_integer_becomes_a_signed_seed_of_the_same_64_bits(seed):
    assert -(2**63) <= seed_to_int64(seed) < 2**63
    assert seed_to_int64(seed) % 2**64 == seed % 2**64
