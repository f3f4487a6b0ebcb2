"""Row statistics and the stash: that the peers compute the same thing, and that floors count the right bytes."""

from dataclasses import replace

import pytest
import torch
from timed import CPU, PLENTY

from dgen.bench.logits import SOFTCAP, Logits, each_logits
from dgen.bench.measure import Bench
from dgen.bench.report import DGEN, PLAIN, TRANSFORMERS
from dgen.bench.row_stats import row_stats_figures, transformers_ops
from dgen.bench.stash import TOP_K, plain_logprobs, stash_call, stash_figures
from dgen.bench.timer import Timer
from dgen.sampler import kernels_for

TORCH = kernels_for("torch", CPU)


def logits(softcap=None, rows=8, vocab=512) -> Logits:
    values = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 9
    return Logits(values, softcap, rows, vocab)


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
def test_transformers_ops_find_what_the_row_statistics_find(softcap):
    x = logits(softcap)
    ours = TORCH.row_stats(x.values, x.temps(), x.canvas, 0, torch.float32, softcap=softcap)
    theirs = transformers_ops(x.values, x.temps(), torch.float32, softcap=softcap)
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[3], theirs[3], rtol=1e-4, atol=1e-7)
    assert transformers_ops(x.values, x.temps(), None)[3] is None


def test_both_draws_follow_the_softmax():
    x = logits(rows=1, vocab=6).values.repeat(4000, 1) / 9
    probs = torch.softmax(x[0] / 0.6, dim=-1)
    drawn = (
        transformers_ops(x, torch.tensor([0.6]), None)[1],
        TORCH.row_stats(x, torch.tensor([0.6]), 4000, 5, None)[1],
    )
    for draw in drawn:
        expected = probs * len(draw)
        chi_squared = ((torch.bincount(draw, minlength=6) - expected) ** 2 / expected).sum()
        assert chi_squared < 25  # 5 degrees of freedom: one in ten thousand


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
def test_plain_ops_find_what_the_stash_finds(softcap):
    x = logits(softcap)
    ids, logprobs, ranks = stash_call(TORCH, x, keep=True)()
    plain_ids, plain, plain_ranks = plain_logprobs(x)
    assert torch.equal(ids[0], plain_ids)
    torch.testing.assert_close(logprobs[0], plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(ranks[0], plain_ranks)


def test_a_stash_that_keeps_nothing_writes_nothing():
    ids, logprobs, ranks = stash_call(TORCH, logits(), keep=False)()
    assert not ids.any()
    assert not logprobs.any()
    assert not ranks.any()


def test_floors_count_the_bytes_that_must_move(bench):
    found = {f.key: f for f in row_stats_figures(bench, TORCH, canvas=8, vocab=512)}
    assert found["row_stats.float32"].floor_bytes == 8 * 512 * 4
    assert found["row_stats.float32.softmax_float32"].floor_bytes == 3 * 8 * 512 * 4
    found = {f.key: f for f in stash_figures(bench, TORCH, canvas=8, vocab=512)}
    assert found["stash.float32.kept"].floor_bytes == 8 * 512 * 4
    assert found["stash.float32.none"].floor_bytes is None


def test_each_figure_stands_beside_its_peer(bench):
    figures = [
        *row_stats_figures(bench, TORCH, canvas=4, vocab=64),
        *stash_figures(bench, TORCH, canvas=4, vocab=64),
    ]
    bodies = {figure.key: [m.by for m in figure.measurements] for figure in figures}
    assert bodies == {
        "row_stats.float32": [DGEN, TRANSFORMERS],
        "row_stats.float32.softmax_float32": [DGEN, TRANSFORMERS],
        "stash.float32.kept": [DGEN, PLAIN],
        "stash.float32.none": [DGEN],
    }
    assert all(len(m.seconds) == 1 and m.skipped is None for figure in figures for m in figure.measurements)


def test_a_vocabulary_smaller_than_k_can_be_timed(bench):
    for figure in stash_figures(bench, TORCH, canvas=2, vocab=TOP_K - 5):
        assert figure.of(DGEN).seconds


def test_logits_that_memory_cannot_hold_are_not_made(bench):
    small = replace(bench, free_memory=lambda _: 8 * 512 * 8 - 1)
    (found,) = each_logits(small, canvas=8, vocab=512)
    assert found.values.numel() == 0
    assert found.lack == "needs 0.0 MB of memory, 0.0 MB are free"
    (found,) = each_logits(bench, canvas=8, vocab=512)
    assert found.values.shape == (8, 512)


def test_figures_without_memory_name_need_and_have():
    poor = Bench(Timer(CPU), 1, lambda _: 10**6, lambda _: None)
    for figure in [
        *row_stats_figures(poor, TORCH, canvas=256, vocab=262144),
        *stash_figures(poor, TORCH, canvas=256, vocab=262144),
    ]:
        for measurement in figure.measurements:
            assert measurement.skipped == "needs 0.5 GB of memory, 1.0 MB are free"
            assert measurement.seconds == ()


def test_inputs_are_the_same_in_every_run():
    rich = Bench(Timer(CPU), 1, lambda _: PLENTY, lambda _: None)
    (first,), (second,) = (list(each_logits(rich, canvas=4, vocab=64)) for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert 2 < first.values.std() < 4
