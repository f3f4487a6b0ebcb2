"""Log-probabilities that leave the engine, against float64 on the logits of the converging step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scripted import BASE, ScriptedDenoiser, ids, run

VOCAB, CANVAS = 40, 6
ASK = replace(BASE, max_tokens=15, steps=3, logprobs=4, logprob_ids=(9, 0, 39))


def noisy(call):
    generator = torch.Generator().manual_seed(call.canvas * 10 + call.step + 100 * call.prompt[0])
    logits = torch.randn(CANVAS, VOCAB, generator=generator) * 2
    logits[1, 20] = logits[1, 21] = logits[1].max() + 1  # a tie for the argmax
    logits[2, 30:] = float("-inf")
    return logits


def expected(emitted, request, *, temperature):
    logits = noisy_at(request, emitted).double() / temperature
    logprobs = logits.log_softmax(-1)
    order = sorted(range(VOCAB), key=lambda i: (-logits[i], i))
    return logprobs, order, int((logits >= logits[emitted.token_id]).sum())


def noisy_at(request, emitted):
    class Call:
        prompt, canvas, step = request.prompt_ids, emitted.canvas, emitted.step

    return noisy(Call)[emitted.position - emitted.canvas * CANVAS]


@pytest.mark.parametrize("kernel_request", [ASK, replace(ASK, logprobs_of="raw")], ids=["tempered", "raw"])
def test_emitted_top_and_asked_for_ids_match_float64(kernel_request):
    _, done = run(ScriptedDenoiser(noisy), kernel_request)
    tokens = done[0].tokens
    assert len(tokens) == 15
    for emitted in tokens:
        temperature = emitted.temperature if kernel_request.logprobs_of == "tempered" else 1.0
        logprobs, order, rank = expected(emitted, kernel_request, temperature=temperature)
        assert emitted.step == 2, "not the converging step"
        assert emitted.token_id == order[0]
        assert emitted.rank == rank
        assert emitted.logprob == pytest.approx(logprobs[order[0]].item(), abs=1e-5)
        assert [token_id for token_id, _ in emitted.top] == order[:4]
        assert [score for _, score in emitted.top] == pytest.approx(logprobs[order[:4]].tolist(), abs=1e-5)
        assert [token_id for token_id, _ in emitted.asked] == [9, 0, 39]
        for token_id, score in emitted.asked:
            want = logprobs[token_id].item()
            assert score == want if math.isinf(want) else score == pytest.approx(want, abs=1e-5)
    assert [tokens[1].rank, tokens[7].rank] == [2, 2], "a tie counts both"


def test_entropy_and_temperature_are_those_of_the_converging_step():
    _, done = run(ScriptedDenoiser(noisy), ASK)
    for emitted in done[0].tokens:
        logprobs, _, _ = expected(emitted, ASK, temperature=emitted.temperature)
        entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum().item()
        assert emitted.entropy == pytest.approx(entropy, abs=1e-5)
        assert emitted.temperature == pytest.approx(0.4 + 0.4 / 3)


def test_widths_and_kinds_mix_in_one_batch_without_touching_each_other():
    requests = [
        replace(ASK, prompt_ids=(1,), logprobs=0, logprob_ids=()),
        replace(ASK, prompt_ids=(2,), logprobs=7, logprobs_of="raw"),
        replace(ASK, prompt_ids=(3,), logprobs=None, logprob_ids=()),
        replace(ASK, prompt_ids=(4,), logprobs=2, logprob_ids=(5,), max_tokens=4),
    ]
    alone = [run(ScriptedDenoiser(noisy), request)[1][0] for request in requests]
    _, done = run(ScriptedDenoiser(noisy, num_slots=4), *requests)
    for index, completion in done.items():
        assert replace(completion, index=0) == alone[index]
    assert all(token.logprob is None and token.top == () for token in done[2].tokens)
    assert {len(token.top) for token in done[1].tokens} == {7}
    assert {len(token.asked) for token in done[3].tokens} == {1}
    assert all(token.top == () for token in done[0].tokens)


def test_filters_shape_the_tempered_distribution_and_leave_the_raw_one():
    filtered = replace(ASK, top_k=2, logprob_ids=())
    _, done = run(ScriptedDenoiser(noisy), filtered)
    for emitted in done[0].tokens:
        finite = [score for _, score in emitted.top if score > float("-inf")]
        assert len(finite) == 2
        assert sum(math.exp(score) for score in finite) == pytest.approx(1.0, abs=1e-5)
    _, raw = run(ScriptedDenoiser(noisy), replace(filtered, logprobs_of="raw"))
    assert all(math.isfinite(score) for token in raw[0].tokens[3:6] for _, score in token.top)
    assert ids(raw[0]) == ids(done[0])


def test_greedy_scores_the_argmax_as_certain():
    _, done = run(ScriptedDenoiser(noisy), replace(ASK, t_min=0.0, t_max=0.0, logprob_ids=()))
    assert done[0].tokens[0].logprob == 0.0
    assert done[0].tokens[0].entropy == 0.0
    assert done[0].tokens[1].logprob == pytest.approx(math.log(0.5)), "two equal logits share the mass"


def test_no_row_is_left_over_when_the_answer_is_cut():
    def script(call):
        logits = noisy(call)
        logits[4] = 0.0
        logits[4, 1] = 30.0  # EOS
        return logits

    _, done = run(ScriptedDenoiser(script), replace(ASK, max_tokens=12))
    assert done[0].finish_reason == "eos"
    assert len(done[0].tokens) == 5
    assert all(len(token.top) == 4 for token in done[0].tokens)
