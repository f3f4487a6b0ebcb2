"""Faults that were found by attacking the loop, each held by what it showed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scripted import BASE, TEXT, ScriptedDenoiser, ids, run, towards

from dgen.engine.canvas import CanvasState
from dgen.engine.engine import Engine
from dgen.engine.events import Denoised
from dgen.errors import SettingsError, UsageError
from dgen.sampler import kernels_for


def test_a_pinned_token_carries_its_own_log_probability_and_rank():
    def script(call):
        logits = towards(TEXT, sure=3.0)
        logits[2, 30] = 2.0
        logits[2, 33] = 1.0
        return logits

    for of in ("tempered", "raw"):
        asked = replace(BASE, steps=2, pins={2: 33}, logprobs=2, logprob_ids=(33,), logprobs_of=of)
        token = run(ScriptedDenoiser(script), asked)[1][0].tokens[2]
        temperature = token.temperature if of == "tempered" else 1.0

        class Call:
            pass

        want = (script(Call)[2].double() / temperature).log_softmax(-1)[33].item()
        assert token.token_id == 33
        assert token.logprob == pytest.approx(want, abs=1e-5) == pytest.approx(token.asked[0][1], abs=1e-5)
        assert token.rank == 3
        assert [token_id for token_id, _ in token.top] == [12, 30]


def masked(call):
    logits = towards(TEXT, sure=8.0)
    logits[:, 20:28] += 5.0
    logits[:, 30:] = float("-inf")
    return logits


def test_a_softcap_still_to_come_is_applied_before_filters_and_leaves_masks_alone():
    capped = ScriptedDenoiser(
        lambda call: torch.where(masked(call).isinf(), masked(call), 5 * torch.tanh(masked(call) / 5))
    )
    asked = replace(BASE, steps=3, logprobs=4, logprob_ids=(35,))
    for filters in ({}, {"top_k": 3}, {"top_p": 0.9}, {"top_k": 3, "logprobs_of": "raw"}):
        request = replace(asked, **filters)
        plain = run(capped, request)[1][0]
        coming = run(ScriptedDenoiser(masked, softcap=5.0), request)[1][0]
        assert ids(coming) == ids(plain)
        for a, b in zip(coming.tokens, plain.tokens, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
            assert a.entropy == pytest.approx(b.entropy, abs=1e-5)
            assert a.asked[0][1] == b.asked[0][1] == float("-inf")


def test_a_filter_changes_nothing_for_a_batch_mate():
    plain, filtered = replace(BASE, steps=3, logprobs=3), replace(BASE, steps=3, top_k=2, top_p=0.5)
    alone = run(ScriptedDenoiser(masked, softcap=5.0), plain)[1][0]
    _, done = run(ScriptedDenoiser(masked, softcap=5.0, num_slots=2), filtered, plain)
    assert replace(done[1], index=0) == alone


def test_an_infinite_logit_is_an_error_with_and_without_a_filter():
    def script(call):
        logits = towards(TEXT)
        logits[1, 3] = float("inf")
        return logits

    for filters in ({}, {"top_k": 3}):
        completion = run(ScriptedDenoiser(script, softcap=5.0), replace(BASE, **filters))[1][0]
        assert (completion.finish_reason, completion.steps) == ("error", (1,))


def test_more_alternatives_than_the_vocabulary_has_are_the_vocabulary():
    token = run(ScriptedDenoiser(masked), replace(BASE, logprobs=1000))[1][0].tokens[0]
    assert sorted(token_id for token_id, _ in token.top) == list(range(40))


def test_filters_of_the_last_tenant_do_not_reach_the_next():
    narrow, wide = replace(BASE, top_k=1, top_p=0.1), replace(BASE, top_k=7, logprobs=9)

    def rising(call):
        return torch.arange(40.0).repeat(6, 1) * 0.1

    alone = run(ScriptedDenoiser(rising), wide)[1][0]
    assert replace(run(ScriptedDenoiser(rising), narrow, wide)[1][1], index=0) == alone
    assert sum(math.isfinite(score) for _, score in alone.tokens[0].top) == 7


def seen_canvases(**changes) -> list[tuple[int, ...]]:
    denoiser = ScriptedDenoiser(lambda call: torch.zeros(6, 40))
    run(denoiser, replace(BASE, max_tokens=12, steps=4, **changes))
    return [call.ids for call in denoiser.calls]


def test_noise_differs_at_every_step_canvas_and_seed_for_draws_and_for_renoising():
    for bound in (0.0, 1e6):  # almost all renoised; all drawn
        canvases = seen_canvases(entropy_bound=bound) + seen_canvases(entropy_bound=bound, seed=6)
        assert len(set(canvases)) == len(canvases) == 16
        for position in range(6):
            assert len({canvas[position] for canvas in canvases}) > 4
    drawn, renoised = seen_canvases(entropy_bound=1e6), seen_canvases(entropy_bound=0.0)
    assert drawn[0] == renoised[0]
    assert drawn[1] != renoised[1], "draws and renoising share a stream"
    assert renoised[1] != renoised[0], "renoising repeats the initial canvas"


def test_the_temperature_span_is_taken_in_double_precision():
    # In single precision 0.8 - 0.7000001 has other low bits.
    request = replace(BASE, t_min=0.7000001, t_max=0.8)
    state = CanvasState(1, 6, 40, torch.device("cpu"), kernels_for("torch", "cpu"))
    state.admit(0, request)
    double = torch.tensor(0.8 - 0.7000001, dtype=torch.float64).float()
    single = torch.tensor(0.8) - torch.tensor(0.7000001)
    assert double != single, "the numbers no longer tell the two apart"
    assert state.t_span[0] == double


def test_a_stop_wins_over_what_else_would_have_ended_the_request():
    engine = Engine(
        ScriptedDenoiser(lambda call: towards((10, 11, 1, 13, 14, 15))), kernels_for("torch", "cpu")
    )
    events = engine.run([BASE])
    for event in events:
        if type(event).__name__ == "Converged":
            engine.stop(0, 1)
    assert event.completion.finish_reason == "stop"
    assert ids(event.completion) == (10,)


@pytest.mark.parametrize("where", ["prefill", "denoise", "condition", "commit"])
def test_out_of_memory_ends_the_request_and_keeps_what_was_committed(where):
    denoiser = ScriptedDenoiser(lambda call: towards(TEXT))
    plain, calls = getattr(denoiser, where), []

    def full(*args):
        calls.append(args)
        if len(calls) == {"prefill": 1, "denoise": 3, "condition": 3, "commit": 1}[where]:
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        return plain(*args)

    setattr(denoiser, where, full)
    _, done = run(denoiser, replace(BASE, max_tokens=18), BASE)
    assert done[0].finish_reason == "error"
    assert "out of memory" in done[0].error
    assert "2.00 GiB" in done[0].error
    assert ids(done[0]) == (() if where == "prefill" else TEXT)
    assert done[1].finish_reason == "length", "the next request was lost with it"


def test_an_interrupt_before_the_first_step_is_not_lost():
    engine = Engine(ScriptedDenoiser(lambda call: towards(TEXT)), kernels_for("torch", "cpu"))
    events = engine.run([BASE])
    engine.interrupt()
    assert not any(isinstance(event, Denoised) for event in events)
    assert list(engine.run([BASE]))[-1].completion.finish_reason == "length"


def test_two_runs_at_once_are_refused():
    engine = Engine(ScriptedDenoiser(lambda call: towards(TEXT)), kernels_for("torch", "cpu"))
    first = engine.run([BASE])
    next(first)
    with pytest.raises(UsageError, match="already running"):
        next(engine.run([BASE]))
    first.close()
    assert list(engine.run([BASE]))


def test_requests_that_cannot_even_begin_leave_the_engine_free():
    class Broken:
        def __iter__(self):
            raise OSError("no such file")

    engine = Engine(ScriptedDenoiser(lambda call: towards(TEXT)), kernels_for("torch", "cpu"))
    with pytest.raises(OSError, match="no such file"):
        next(engine.run(Broken()))
    assert list(engine.run([BASE]))[-1].completion.finish_reason == "length"


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"max_tokens": 0},
        {"logprobs": 5000},
        {"top_k": 10**20},
        {"t_min": 0.9},
        {"t_max": float("nan")},
        {"confidence": 1e300},
        {"pins": {6: 3}},
        {"pins": {-1: 3}},
        {"seed_canvas": (3,) * 7},
        {"seed": 2**63},
    ],
    ids=str,
)
def test_numbers_that_no_engine_can_run_are_refused_and_end_their_request_alone(changes):
    bad = replace(BASE, **changes)
    engine = Engine(ScriptedDenoiser(lambda call: towards(TEXT)), kernels_for("torch", "cpu"))
    with pytest.raises(SettingsError):
        engine.check(bad)
    _, done = run(ScriptedDenoiser(lambda call: towards(TEXT)), bad, BASE)
    assert (done[0].finish_reason, done[1].finish_reason) == ("error", "length")
