"""The same inputs give the same bits, other rows have no say, and a captured call follows what its tensors hold."""

from __future__ import annotations

import pytest
import torch

from dgen.sampler import sample_row_stats, stash_converged_logprobs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, from the interpreter


def row_stats(logits, temps, canvas_len, at, *, softcap=30.0, row_scale=None):
    return sample_row_stats(
        logits, temps, canvas_len, 0, torch.bfloat16, softcap=softcap, row_scale=row_scale, **at
    )


def places(requests, device, *, seed=5, step=3):
    order = torch.arange(requests, device=device)
    return {"row_seeds": order + seed, "canvases": order % 3, "steps": order * 0 + step}


def stash(logits, canvas_len, *, top_k=6, keep=None, softcap=30.0):
    device, requests = logits.device, len(logits) // canvas_len
    order = torch.arange(requests, device=device)
    outputs = (
        torch.zeros(requests, canvas_len, top_k + 1, dtype=torch.int64, device=device),
        torch.zeros(requests, canvas_len, top_k + 1, device=device),
        torch.zeros(requests, canvas_len, dtype=torch.int64, device=device),
    )
    keep = order >= 0 if keep is None else keep
    valid, temps = order * 0 + canvas_len, torch.full((requests,), 0.7, device=device)
    none = order * 0
    stash_converged_logprobs(
        logits,
        canvas_len,
        order,
        order,
        keep,
        valid,
        temps,
        top_k,
        none,
        None,
        *outputs,
        False,
        softcap=softcap,
    )
    return outputs


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def sizes(device):
    """Requests, canvas, vocabulary: small where kernels are interpreted."""
    return (4, 256, 262144 + 3) if device.type == "cuda" else (3, 2, 2100)


def test_the_same_call_gives_the_same_bits(device, generator):
    requests, canvas_len, vocab = sizes(device)
    logits = torch.randn(requests * canvas_len, vocab, generator=generator).mul_(8).bfloat16().to(device)
    temps, at = torch.full((requests,), 0.6, device=device), places(requests, device)
    first, kept = row_stats(logits, temps, canvas_len, at), stash(logits, canvas_len)
    for _ in range(3 if device.type == "cuda" else 1):
        assert same(row_stats(logits, temps, canvas_len, at), first)
        assert same(stash(logits, canvas_len), kept)


def test_other_rows_have_no_say(device, generator):
    requests, canvas_len, vocab = sizes(device)
    logits = torch.randn(requests * canvas_len, vocab, generator=generator).mul_(8).bfloat16().to(device)
    temps, at = torch.full((requests,), 0.6, device=device), places(requests, device)
    whole, kept = row_stats(logits, temps, canvas_len, at), stash(logits, canvas_len)
    last = slice((requests - 1) * canvas_len, None)
    own = {name: value[-1:] for name, value in at.items()}
    assert same(row_stats(logits[last], temps[-1:], canvas_len, own), [part[last] for part in whole])
    assert same(stash(logits[last], canvas_len), [part[-1:] for part in kept])
    logits[: last.start] = float("nan")
    assert same(
        [part[last] for part in row_stats(logits, temps, canvas_len, at)], [part[last] for part in whole]
    )
    assert same([part[-1:] for part in stash(logits, canvas_len)], [part[-1:] for part in kept])


def test_an_unnormalised_softmax_times_its_row_scale_is_the_softmax(kernels, device, generator):
    logits = torch.randn(4, 1500, generator=generator).mul_(5).to(device)
    logits[3, 7] = float("nan")
    temps = torch.tensor([0.8, 0.3], device=device)
    normalised = kernels.row_stats(logits, temps, 2, 1, torch.float32, softcap=30.0)
    scale = torch.empty(4, device=device)
    raw = kernels.row_stats(logits, temps, 2, 1, torch.float32, softcap=30.0, row_scale=scale)
    assert torch.equal(raw[0], normalised[0])
    assert torch.equal(raw[1], normalised[1])
    assert raw[3].amax(dim=-1).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert float(scale[3]) == 0.0
    torch.testing.assert_close(raw[3] * scale[:, None], normalised[3], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "dtype", "every"), [(3, "float32", 1), (4, "float64", 1), (8, "float32", 2)]
)
def test_a_row_scale_that_does_not_fit_is_refused(kernels, device, shape, dtype, every):
    logits, temps = torch.zeros(4, 9, device=device), torch.ones(1, device=device)
    scale = torch.empty(shape, dtype=getattr(torch, dtype), device=device)[::every]
    with pytest.raises(ValueError, match="row_scale"):
        kernels.row_stats(logits, temps, 4, 0, None, row_scale=scale)


@pytest.mark.parametrize("softcap", [1e-4, 2000.0, -30.0, float("nan")])
def test_a_softcap_out_of_range_is_refused(kernels, device, softcap):
    logits, temps = torch.zeros(4, 9, device=device), torch.ones(1, device=device)
    with pytest.raises(ValueError, match="softcap"):
        kernels.row_stats(logits, temps, 4, 0, None, softcap=softcap)
    with pytest.raises(ValueError, match="softcap"):
        stash(logits, 4, softcap=softcap)


@pytest.mark.gpu
def test_a_captured_call_follows_temperature_seeds_and_step_on_the_device(device, generator):
    canvas_len, vocab = 16, 5000
    logits = torch.randn(2 * canvas_len, vocab, generator=generator).mul_(4).to(device)
    temps, at = torch.full((2,), 0.6, device=device), places(2, device)
    keep = torch.tensor([True, False], device=device)
    row_stats(logits, temps, canvas_len, at)
    stash(logits, canvas_len, keep=keep)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = row_stats(logits, temps, canvas_len, at)
        kept = stash(logits, canvas_len, keep=keep)
    for t, step, seed, both in (
        (0.6, 3, 5, False),
        (1.4, 4, 5, True),
        (0.2, 9, 77, True),
        (0.0, 9, 77, False),
    ):
        temps.fill_(t)
        at["steps"].fill_(step)
        at["row_seeds"].copy_(torch.arange(2, device=device) + seed)
        keep[1] = both
        graph.replay()
        assert same(captured, row_stats(logits, temps, canvas_len, at))
        assert same(kept, stash(logits, canvas_len, keep=keep))
        assert bool(kept[2][1].any()) == both


@pytest.mark.gpu
def test_neither_function_waits_for_the_device(device):
    logits = torch.randn(32, 70000, device=device)
    temps, at = torch.full((2,), 0.6, device=device), places(2, device)
    row_stats(logits, temps, 16, at)
    stash(logits, 16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        row_stats(logits, temps, 16, at)
        stash(logits, 16)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_stash_of_logits_beyond_2_to_31_entries(device):
    logits = torch.zeros(8208, 262144, dtype=torch.bfloat16, device=device)
    logits[-16:] = torch.randn(16, 262144, device=device).bfloat16() * 5
    alone = stash(logits[-16:], 16)
    assert same([part[-1:] for part in stash(logits, 16)], alone)
