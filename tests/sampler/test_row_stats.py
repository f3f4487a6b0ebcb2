"""Row statistics: both implementations against float64, every kind of row, and draws that follow the law."""

from __future__ import annotations

import math

import pytest
import torch

from dgen.sampler import kernels_for, sample_row_stats_reference
from dgen.sampler.chunks import CHUNK

INF = float("inf")
VOCABULARIES = [1, 2, 7, 1023, 1024, 1025, 2049, 5000]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, from the interpreter


def capped64(logits, softcap):
    x = logits.double()
    return x if softcap is None else torch.where(x.isinf(), x, softcap * torch.tanh(x / softcap))


def in_float64(logits, temps, canvas_len, softcap=None):
    """Entropy and softmax of each row, term by term, and the first of the largest fp32 logits."""
    entropies, softmaxes, argmaxes = [], [], []
    for i, row in enumerate(logits.cpu()):
        t = max(float(temps[i // canvas_len]), 1e-10)
        x = capped64(row, softcap)
        p = torch.softmax((x - x.max()) / t, dim=-1)
        entropies.append(-sum(v * math.log(v) for v in p.tolist() if v > 0))
        softmaxes.append(p)
        single = x.float()
        argmaxes.append(int((single == single.max()).nonzero()[0]))
    return torch.tensor(argmaxes), torch.tensor(entropies, dtype=torch.float64), torch.stack(softmaxes)


def rows_of(kind, rows, vocab, generator):
    x = torch.randn(rows, vocab, generator=generator)
    if kind == "peaked":
        x[torch.arange(rows), torch.randint(vocab, (rows,), generator=generator)] += 40
    elif kind == "flat":
        x *= 1e-3
    elif kind == "tied":
        x = x.round()
    elif kind == "constant":
        x = torch.full_like(x, 3.25)
    elif kind == "masked":
        x[torch.rand(rows, vocab, generator=generator) < 0.9] = -INF
        x[:, -1] = 0.5
    elif kind == "huge":
        x *= 5e37
    elif kind == "large":
        x *= 1e4
    elif kind == "tiny":
        x *= 1e-38
    return x


def check(kernels, logits, temps, canvas_len, *, softcap=None, probs_dtype=torch.float32, **noise):
    """Run and hold the result against float64; returns it on the CPU."""
    at = {name: value.to(logits.device) for name, value in noise.items()}
    result = kernels.row_stats(
        logits, temps.to(logits.device), canvas_len, 17, probs_dtype, softcap=softcap, **at
    )
    argmax, draw, entropy, probs = (part.cpu() for part in result)
    assert (argmax.dtype, draw.dtype, entropy.dtype) == (torch.int64, torch.int64, torch.float32)
    expected_argmax, expected_entropy, expected_probs = in_float64(logits, temps, canvas_len, softcap)
    assert torch.equal(argmax, expected_argmax)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=0, atol=1e-5)
    assert bool((entropy >= 0).all())
    # A softmax entry is as good as its scaled logit, whose distance from the maximum rounds in fp32.
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 1 / 128, torch.float16: 1 / 1024}[probs_dtype]
    torch.testing.assert_close(probs.double(), expected_probs, rtol=tolerance, atol=1e-7)
    assert bool((expected_probs.gather(1, draw[:, None]) > 0).all())
    return argmax, draw, entropy, probs


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_random_rows_of_any_vocabulary_match_float64(kernels, device, generator, vocab):
    logits = rows_of("random", 3, vocab, generator) * 3
    check(kernels, logits.to(device), torch.tensor([0.7]), 3)


@pytest.mark.parametrize("kind", ["peaked", "flat", "tied", "constant", "masked", "huge", "large", "tiny"])
def test_every_kind_of_row_matches_float64(kernels, device, generator, kind):
    logits = rows_of(kind, 4, 1500, generator)
    check(kernels, logits.to(device), torch.tensor([0.8, 0.4]), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_softcap_and_dtypes_match_float64(kernels, device, generator, dtype):
    logits = (rows_of("random", 4, 1300, generator) * 12).to(device, dtype)
    softmax_dtype = torch.float32 if dtype == torch.float32 else dtype
    check(kernels, logits, torch.tensor([0.8, 0.4]), 2, softcap=30.0, probs_dtype=softmax_dtype)


def test_equal_logits_after_the_softcap_give_the_lower_id(kernels, device):
    logits = torch.zeros(1, 1200, device=device)
    logits[0, 700], logits[0, 1100] = 9000.0, 9001.0  # both at the cap
    argmax = kernels.row_stats(logits, torch.tensor([0.5], device=device), 1, 0, None, softcap=30.0)[0]
    assert argmax.tolist() == [700]


@pytest.mark.parametrize("chunk_border", [0, CHUNK - 1, CHUNK, 2 * CHUNK - 1])
def test_equal_logits_give_the_lower_id_across_chunks(kernels, device, chunk_border):
    logits = torch.zeros(1, 2 * CHUNK + 3, device=device)
    logits[0, chunk_border] = logits[0, 2 * CHUNK] = 2.0
    argmax = kernels.row_stats(logits, torch.tensor([0.8], device=device), 1, 0, None)[0]
    assert argmax.tolist() == [chunk_border]


def test_the_argmax_is_taken_before_the_temperature(kernels, device):
    neighbours = (torch.tensor(1.5).view(torch.int32) + torch.arange(9, dtype=torch.int32)).view(
        torch.float32
    )
    t = torch.tensor([1.5])
    merged = neighbours[:-1] / t == neighbours[1:] / t
    assert merged.any()
    logits = torch.stack([neighbours[:-1], neighbours[1:]], dim=1)[merged].to(device)
    argmax = kernels.row_stats(logits, t.to(device), len(logits), 0, None)[0]
    assert argmax.tolist() == [1] * len(logits)


def test_zero_temperature_draws_the_argmax(kernels, device, generator):
    logits = rows_of("tied", 6, 1100, generator).to(device)  # many equal maxima to choose wrongly from
    argmax, draw, _, _ = check(kernels, logits, torch.tensor([0.0]), 6)
    assert torch.equal(argmax, draw)


def test_zero_temperature_has_the_entropy_of_the_clamped_one(kernels, device):
    logits = torch.tensor([[5.0, 5.0, 4.999, -3e38], [1e30, 2e30, -1e30, -INF]], device=device)
    _, _, entropy, probs = kernels.row_stats(logits, torch.zeros(1, device=device), 2, 0, torch.float32)
    torch.testing.assert_close(entropy.cpu(), torch.tensor([math.log(2), 0.0]))
    assert probs.tolist() == [[0.5, 0.5, 0, 0], [0, 1, 0, 0]]


def test_zero_temperature_under_the_softcap_stays_a_single_token(kernels, device, generator):
    # 1 / T is 1e10 here: a maximum that rounds differently from one pass to the next would overflow.
    logits = (torch.randn(6, 1500, generator=generator) * 20).to(device)
    _, _, entropy, probs = check(kernels, logits, torch.tensor([0.0]), 6, softcap=30.0)
    assert entropy.tolist() == [0.0] * 6
    assert probs.max(dim=-1).values.tolist() == [1.0] * 6


@pytest.mark.parametrize("at", [0, 1023, 1024, 2048])
def test_a_row_with_one_finite_logit_has_no_entropy(kernels, device, at):
    logits = torch.full((1, 2049), -INF, device=device)
    logits[0, at] = -7.5
    argmax, draw, entropy, probs = check(kernels, logits, torch.tensor([0.6]), 1)
    assert (int(argmax), int(draw), float(entropy)) == (at, at, 0.0)
    assert float(probs[0, at]) == 1.0


BAD_ROWS = {
    "a NaN": {5: float("nan")},
    "a NaN in the last chunk": {2040: float("nan")},
    "+inf": {1030: INF},
    "+inf and -inf": {3: INF, 4: -INF},
    "+inf and a NaN": {3: INF, 1500: float("nan")},
}


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_without_a_distribution_never_gives_a_token(kernels, device, generator, name, softcap):
    logits = torch.randn(3, 2049, generator=generator)
    for column, value in BAD_ROWS[name].items():
        logits[1, column] = value
    one = torch.tensor([0.0], device=device), 3, 0, torch.float32  # greedy must not rescue it either
    argmax, draw, entropy, probs = kernels.row_stats(logits.to(device), *one, softcap=softcap)
    assert argmax[1] == draw[1] == -1
    assert bool(entropy[1].isnan())
    assert not probs[1].any()
    assert bool((argmax[[0, 2]] >= 0).all())
    assert bool(entropy[[0, 2]].isfinite().all())


@pytest.mark.parametrize("fill", [-INF, float("nan")])
def test_a_row_with_nothing_finite_never_gives_a_token(kernels, device, fill):
    logits = torch.full((2, 1030), fill, device=device)
    t = torch.tensor([0.7], device=device)
    argmax, draw, entropy, probs = kernels.row_stats(logits, t, 2, 0, torch.bfloat16)
    assert argmax.tolist() == draw.tolist() == [-1, -1]
    assert bool(entropy.isnan().all())
    assert not probs.any()


def test_a_masked_logit_stays_masked_under_the_softcap(kernels, device):
    logits = torch.tensor([[-INF, -100.0, -INF]], device=device)
    t = torch.tensor([0.7], device=device)
    argmax, draw, entropy, probs = kernels.row_stats(logits, t, 1, 0, torch.float32, softcap=30.0)
    assert (int(argmax), int(draw), float(entropy)) == (1, 1, 0.0)
    assert probs.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("softmax_dtype", [None, torch.float32])
def test_no_rows_give_empty_results(kernels, device, softmax_dtype):
    logits, none = torch.zeros(0, 9, device=device), torch.zeros(0, device=device)
    argmax, draw, entropy, probs = kernels.row_stats(logits, none, 4, 0, softmax_dtype)
    assert (argmax.shape, draw.shape, entropy.shape) == ((0,), (0,), (0,))
    assert probs is None if softmax_dtype is None else probs.shape == (0, 9)


def test_no_dtype_means_no_softmax(kernels, device):
    t = torch.ones(1, device=device)
    assert kernels.row_stats(torch.zeros(1, 3, device=device), t, 1, 0, None)[3] is None


def test_padded_and_transposed_logits_give_the_same(kernels, device, generator):
    plain = torch.randn(3, 1030, generator=generator).to(device)
    padded = torch.full((3, 1100), float("nan"), device=device)
    padded[:, :1030] = plain
    t = torch.tensor([0.7], device=device)
    expected = kernels.row_stats(plain, t, 3, 4, torch.float32)
    odd = torch.full((3, 1031), float("nan"), device=device)  # rows that begin anywhere, not at 16 bytes
    odd[:, :1030] = plain
    for view in (padded[:, :1030], plain.T.contiguous().T, odd[:, :1030]):
        got = kernels.row_stats(view, t, 3, 4, torch.float32)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        torch.testing.assert_close(got[2:], expected[2:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (2, 0), (1, 2, 3)])
def test_what_is_no_matrix_of_logits_is_refused(kernels, device, shape):
    with pytest.raises(ValueError, match="logits must be"):
        kernels.row_stats(torch.zeros(shape, device=device), torch.ones(1, device=device), 1, 0, None)


@pytest.mark.parametrize(("vocab", "softcap"), [(7, None), (1025, 30.0), (2049, None)])
def test_triton_and_torch_draw_the_same(device, generator, vocab, softcap):
    rows, canvas_len = 24, 6
    logits = torch.randn(rows, vocab, generator=generator).to(device)
    at = {
        "row_seeds": torch.tensor([1, -1, 2**62, 1], device=device),
        "canvases": torch.tensor([0, 0, 3, 1], device=device),
        "steps": torch.tensor([0, 47, 5, 0], device=device),
    }
    t = torch.tensor([0.8, 0.4, 0.0, 1.3], device=device)
    triton, torch_ = (
        kernels_for(name, device).row_stats(logits, t, canvas_len, 0, torch.float32, softcap=softcap, **at)
        for name in ("triton", "torch")
    )
    assert torch.equal(triton[0], torch_[0])
    assert torch.equal(triton[1], torch_[1])
    assert len(set(triton[1].tolist())) > min(5, vocab // 2)
    torch.testing.assert_close(triton[2], torch_[2], rtol=0, atol=1e-5)
    torch.testing.assert_close(triton[3], torch_[3], rtol=1e-5, atol=1e-7)


def test_a_draw_depends_on_its_own_place_alone(kernels, device, generator):
    """Not on the slot, the batch-mates or their order."""
    canvas_len, vocab = 3, 1100
    logits = torch.randn(3, canvas_len, vocab, generator=generator).to(device)
    t = torch.tensor([0.8, 0.6, 0.7], device=device)
    seeds, canvases = torch.tensor([9, -4, 9], device=device), torch.tensor([0, 2, 1], device=device)
    steps = torch.tensor([5, 1, 5], device=device)

    def draws(order):
        rows = torch.tensor(order, device=device)
        at = {"row_seeds": seeds[rows], "canvases": canvases[rows], "steps": steps[rows]}
        flat = logits[rows].reshape(-1, vocab)
        return kernels.row_stats(flat, t[rows], canvas_len, 0, None, **at)[1].view(-1, canvas_len)

    alone = torch.cat([draws([request]) for request in range(3)])
    for order in ([0, 1, 2], [2, 0, 1], [1, 0]):
        assert torch.equal(draws(order), alone[order])


@pytest.mark.parametrize("seed", [5, -5, 2**64 - 5])
def test_any_integer_is_a_seed_for_all_rows(kernels, device, seed):
    logits, t = torch.zeros(4, 40, device=device), torch.ones(2, device=device)
    signed = torch.full((2,), seed - 2**64 if seed >= 2**63 else seed, device=device)
    by_request = kernels.row_stats(logits, t, 2, 0, None, row_seeds=signed)[1]
    assert torch.equal(kernels.row_stats(logits, t, 2, seed, None)[1], by_request)


def test_seeds_may_be_given_by_request_or_by_row(kernels, device):
    logits, t = torch.zeros(6, 900, device=device), torch.ones(3, device=device)

    def draws(seed, **row_seeds):
        return kernels.row_stats(logits, t, 2, seed, None, **row_seeds)[1]

    seeds = [7, 8, 7, 9, 10, 11]
    by_row = draws(0, row_seeds=torch.tensor(seeds, device=device))
    assert by_row.tolist() == [int(draws(seed)[row]) for row, seed in enumerate(seeds)]
    by_request = draws(0, row_seeds=torch.tensor([7, 8, 9], device=device))
    assert torch.equal(by_request, draws(0, row_seeds=torch.tensor([7, 7, 8, 8, 9, 9], device=device)))
    assert not torch.equal(by_request, by_row)
    with pytest.raises(ValueError, match="row_seeds"):
        draws(0, row_seeds=torch.tensor([7, 8], device=device))


@pytest.mark.parametrize("moved", ["seed", "canvas", "step"])
def test_another_place_gives_another_draw(kernels, device, moved):
    logits, t = torch.zeros(8, 3000, device=device), torch.ones(1, device=device)

    def draws(seed=3, canvas=0, step=0):
        at = {
            "canvases": torch.tensor([canvas], device=device),
            "steps": torch.tensor([step], device=device),
        }
        return kernels.row_stats(logits, t, 8, seed, None, **at)[1]

    assert torch.equal(draws(), draws())
    assert int((draws() == draws(**{moved: 7})).sum()) <= 1
    assert len(set(draws().tolist())) > 6  # positions differ too


def p_value(counts, expected):
    """Of Pearson's chi-squared; bins with an expectation below 5 are pooled into one."""
    rare = expected < 5
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
        if expected[-1] < 5:
            assert counts[-1] < 5 * (expected[-1] + 5)
            counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), statistic / 2))


def draw_counts(row, t, draws, seed, bins, *, form=sample_row_stats_reference):
    """Draws of one row at many positions, counted in `bins` (the bin of each id)."""
    temps = torch.tensor([t], device=row.device)
    drawn = form(row.expand(draws, -1), temps, draws, None, seed=seed)[1].cpu()
    assert bool((drawn >= 0).all())
    return torch.bincount(bins[drawn], minlength=int(bins.max()) + 1).double()


def binned(row, t, bins):
    p = torch.softmax(row.cpu().double() / t, dim=-1)
    return torch.zeros(int(bins.max()) + 1, dtype=torch.float64).index_add(0, bins, p)


@pytest.mark.parametrize(("vocab", "t", "draws"), [(2, 0.8, 50_000), (7, 0.4, 50_000), (300, 1.0, 20_000)])
def test_draws_of_a_small_vocabulary_follow_the_softmax(generator, vocab, t, draws):
    row = torch.randn(vocab, generator=generator)
    bins = torch.arange(vocab)
    counts = draw_counts(row, t, draws, 1, bins)
    assert p_value(counts, draws * binned(row, t, bins)) > 0.001


@pytest.mark.parametrize("moved", ["seed", "canvas", "step", "position"])
def test_draws_of_two_places_are_independent(generator, moved):
    vocab, draws = 6, 30_000
    row = torch.randn(vocab, generator=generator)

    def drawn(seed=4, canvas=1, step=2):
        at = {"canvases": torch.tensor([canvas]), "steps": torch.tensor([step])}
        logits, temps = row.expand(draws, -1), torch.ones(1)
        return sample_row_stats_reference(logits, temps, draws, None, seed=seed, **at)[1]

    first = drawn()
    second = first.roll(1) if moved == "position" else drawn(**{moved: 3 if moved != "seed" else 5})
    p = torch.softmax(row.double(), dim=-1)
    pairs = torch.bincount(first * vocab + second, minlength=vocab**2).double()
    assert p_value(pairs, draws * torch.outer(p, p).flatten()) > 0.001


def test_draws_follow_the_softmax_within_and_across_chunks(generator):
    row = torch.randn(2 * CHUNK + 500, generator=generator) * 0.1
    row[[10, CHUNK + 3, 2 * CHUNK + 499]] = torch.tensor([5.0, 4.0, 6.0])
    row[CHUNK + 100 : CHUNK + 600] = -INF
    bins = torch.arange(len(row)) // 100
    counts = draw_counts(row, 0.9, 8000, 2, bins)
    assert p_value(counts, 8000 * binned(row, 0.9, bins)) > 0.001


def test_draws_of_the_full_vocabulary_follow_the_softmax(generator):
    row = torch.randn(262144, generator=generator)
    row[200_001] += math.log(262144) + 0.5  # about as likely as all others together
    bins = torch.arange(262144) // 16384
    bins[200_001] = 16
    counts = draw_counts(row, 1.0, 256, 3, bins)
    assert p_value(counts, 256 * binned(row, 1.0, bins)) > 0.001


def test_a_masked_token_is_never_drawn(kernels, device):
    row = torch.zeros(1030, device=device)
    row[:1028] = -INF
    row[1029] = -2.0
    drawn = kernels.row_stats(row.expand(24, -1), torch.ones(1, device=device), 24, 0, None)[1]
    assert set(drawn.tolist()) == {1028, 1029}


def test_the_reference_is_the_same_in_tiles(monkeypatch, generator):
    logits = torch.randn(7, 50, generator=generator)
    whole = sample_row_stats_reference(logits, torch.tensor([0.7]), 7, torch.float32)
    monkeypatch.setattr("dgen.sampler.chunks._TILE_ENTRIES", 100)
    tiled = sample_row_stats_reference(logits, torch.tensor([0.7]), 7, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(whole, tiled, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("vocab", "t", "calls", "width"),
    [(7, 0.4, 20, 1), (2049, 0.9, 20, 1), (50257, 1.0, 160, 16), (262144, 0.8, 320, 64)],
)
def test_ten_million_draws_follow_the_softmax(device, generator, vocab, t, calls, width):
    from dgen.sampler import sample_row_stats

    row = torch.randn(vocab, generator=generator)
    row[vocab * 3 // 4] += math.log(vocab)  # about as likely as all others together
    bins = torch.arange(vocab) // width
    bins[vocab * 3 // 4] = bins.max() + 1
    counts, draws = torch.zeros(int(bins.max()) + 1, dtype=torch.float64), 10_485_760 // calls

    def triton(logits, temps, canvas_len, probs_dtype, *, seed):
        return sample_row_stats(logits, temps, canvas_len, seed, probs_dtype)

    for seed in range(calls):
        counts += draw_counts(row.to(device), t, draws, seed, bins, form=triton)
    assert int(counts.sum()) >= 10_000_000
    assert p_value(counts, calls * draws * binned(row, t, bins)) > 0.001


@pytest.mark.gpu
def test_logits_beyond_2_to_31_entries(device):
    from dgen.sampler import sample_row_stats

    rows, vocab = 8208, 262144
    logits = torch.zeros(rows, vocab, dtype=torch.bfloat16, device=device)
    tail = torch.randn(16, vocab, device=device).bfloat16()
    logits[-16:] = tail
    at = {"canvases": torch.arange(rows, device=device), "steps": torch.zeros(rows, device=device).long()}
    got = sample_row_stats(logits, torch.full((rows,), 0.7, device=device), 1, 5, torch.bfloat16, **at)
    at = {name: value[-16:] for name, value in at.items()}
    expected = sample_row_stats(tail, torch.full((16,), 0.7, device=device), 1, 5, torch.bfloat16, **at)
    for part, expected_part in zip(got, expected, strict=True):
        assert torch.equal(part[-16:], expected_part)


@pytest.mark.gpu
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_triton_equals_torch_on_a_canvas_of_the_released_model(device, generator, softcap):
    logits = (torch.randn(256, 262144, generator=generator) * 4).to(device, torch.bfloat16)
    t = torch.tensor([0.6], device=device)
    triton, torch_ = (
        kernels_for(name, device).row_stats(logits, t, 256, 11, torch.float32, softcap=softcap)
        for name in ("triton", "torch")
    )
    assert torch.equal(triton[0], torch_[0])
    # A draw turns where two keys differ by less than the rounding of a scaled logit.
    assert int((triton[1] != torch_[1]).sum()) <= 1
    torch.testing.assert_close(triton[2], torch_[2], rtol=0, atol=1e-5)
    torch.testing.assert_close(triton[3], torch_[3], rtol=1e-4, atol=1e-9)
