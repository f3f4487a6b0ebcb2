"""The law of the loop, line by line, on a scripted denoiser: ends, lengths, convergence, pins, slots, failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scripted import BASE, TEXT, ScriptedDenoiser, ids, run, towards

from dgen.engine.engine import Engine
from dgen.engine.events import Committed, Converged, Denoised, Finished, Prefilled
from dgen.errors import ContextError, SettingsError
from dgen.sampler import kernels_for


def always(*ids):
    return lambda call: towards(ids)


def test_events_come_in_the_promised_order():
    events, _ = run(ScriptedDenoiser(always(*TEXT)), replace(BASE, max_tokens=12))
    kinds = [type(event) for event in events]
    assert kinds == [
        Prefilled,
        Denoised,
        Denoised,
        Converged,
        Committed,
        Denoised,
        Denoised,
        Converged,
        Finished,
    ]


def test_a_stable_canvas_needs_one_more_equal_step_than_its_stability():
    for stability in (0, 1, 2, 5):
        _, done = run(ScriptedDenoiser(always(*TEXT)), replace(BASE, stability=stability))
        assert done[0].steps == (stability + 1,)


def test_a_changed_argmax_restarts_stability():
    def script(call):
        return towards((*TEXT[:5], 20 if call.step == 1 else 15))

    _, done = run(ScriptedDenoiser(script), BASE)
    assert done[0].steps == (4,)


def test_an_unsure_canvas_runs_out_of_steps_and_emits_its_argmax():
    _, done = run(ScriptedDenoiser(lambda call: towards(TEXT, sure=2.0)), BASE)
    assert (done[0].steps, done[0].converged_by, ids(done[0])) == ((8,), ("steps",), TEXT)


def test_a_canvas_that_is_confident_at_its_last_step_says_so():
    _, done = run(ScriptedDenoiser(always(*TEXT)), replace(BASE, steps=2))
    assert done[0].converged_by == ("confidence",)


def test_temperature_starts_at_t_max_and_never_reaches_t_min():
    events, _ = run(ScriptedDenoiser(lambda call: towards(TEXT, sure=2.0)), BASE)
    temps = [event.temperature for event in events if isinstance(event, Denoised)]
    assert temps[0] == pytest.approx(0.8)
    assert temps[-1] == pytest.approx(0.4 + 0.4 / 8)


@pytest.mark.parametrize("eos", [1, 7])
def test_the_first_eos_ends_the_request_and_nothing_follows(eos):
    denoiser = ScriptedDenoiser(always(10, 11, eos, 13, 1, 15))
    _, done = run(denoiser, replace(BASE, max_tokens=60))
    assert (ids(done[0]), done[0].finish_reason) == ((10, 11, eos), "eos")
    assert denoiser.committed == []


def test_eos_in_a_draft_means_nothing():
    def script(call):
        return towards((1, *TEXT[1:]) if call.step < 2 and call.canvas == 0 else TEXT)

    _, done = run(ScriptedDenoiser(script), replace(BASE, stability=2, max_tokens=12))
    assert (ids(done[0]), done[0].finish_reason) == (TEXT + TEXT, "length")


@pytest.mark.parametrize("budget", [1, 5, 6, 7, 12, 13])
def test_max_tokens_is_exact(budget):
    denoiser = ScriptedDenoiser(always(*TEXT))
    _, done = run(denoiser, replace(BASE, max_tokens=budget))
    assert ids(done[0]) == (TEXT * 3)[:budget]
    assert done[0].finish_reason == "length"
    assert len(denoiser.committed) == -(-budget // 6) - 1


def test_an_eos_beyond_the_budget_is_a_length_and_one_on_its_edge_is_an_eos():
    script = always(10, 11, 12, 1, 14, 15)
    assert run(ScriptedDenoiser(script), replace(BASE, max_tokens=3))[1][0].finish_reason == "length"
    assert run(ScriptedDenoiser(script), replace(BASE, max_tokens=4))[1][0].finish_reason == "eos"


def test_without_eos_ids_the_budget_ends_it():
    _, done = run(ScriptedDenoiser(always(1, 7, 1, 7, 1, 7)), replace(BASE, eos_ids=frozenset()))
    assert done[0].finish_reason == "length"
    assert len(done[0].tokens) == 6


def test_the_prompt_is_encoded_once_and_each_canvas_once():
    denoiser = ScriptedDenoiser(always(*TEXT))
    run(denoiser, replace(BASE, max_tokens=18))
    assert denoiser.prefilled == [(0, (2, 3, 4))]
    assert denoiser.committed == [(0, TEXT), (0, TEXT)]


def test_the_argmax_is_emitted_and_committed_not_the_draw():
    # Half the mass lies off the argmax: draws differ from it, yet only it leaves.
    denoiser = ScriptedDenoiser(lambda call: towards(TEXT, sure=3.0))
    _, done = run(denoiser, replace(BASE, max_tokens=12, steps=3, t_min=2.0, t_max=2.0))
    assert ids(done[0]) == TEXT + TEXT
    assert denoiser.committed == [(0, TEXT)]
    assert any(call.ids != TEXT for call in denoiser.calls)


def test_every_step_conditions_the_next():
    denoiser = ScriptedDenoiser(always(*TEXT))
    run(denoiser, replace(BASE, max_tokens=12, stability=3))
    assert len(denoiser.conditioned) == 2 * 4  # the last one of a canvas is forgotten by its commit
    assert torch.allclose(denoiser.conditioned[0][1].sum(-1), torch.ones(6))


def test_stop_keeps_what_it_is_told_and_no_canvas_follows():
    denoiser = ScriptedDenoiser(always(*TEXT))
    engine = Engine(denoiser, kernels_for("torch", "cpu"))
    for event in engine.run([replace(BASE, max_tokens=60)]):
        if isinstance(event, Converged) and event.canvas == 1:
            engine.stop(event.index, 8)
        if isinstance(event, Finished):
            assert (ids(event.completion), event.completion.finish_reason) == ((TEXT + TEXT)[:8], "stop")
    assert len(denoiser.committed) == 1
    assert denoiser.held == {}


def test_interrupt_keeps_converged_canvases_and_frees_the_slot():
    denoiser = ScriptedDenoiser(always(*TEXT))
    engine = Engine(denoiser, kernels_for("torch", "cpu"))
    done = None
    for event in engine.run([replace(BASE, max_tokens=60), BASE]):
        if isinstance(event, Denoised) and event.canvas == 2:
            engine.interrupt()
        if isinstance(event, Finished):
            assert done is None, "a request that had not begun was finished"
            done = event.completion
    assert (ids(done), done.finish_reason, done.steps) == (TEXT + TEXT, "interrupted", (2, 2, 1))
    assert denoiser.held == {}
    assert list(engine.run([BASE]))[-1].completion.finish_reason == "length", "the engine stays usable"


def test_a_consumer_that_walks_away_leaves_no_slot_taken():
    denoiser = ScriptedDenoiser(always(*TEXT), num_slots=2)
    engine = Engine(denoiser, kernels_for("torch", "cpu"))
    events = engine.run([BASE, BASE])
    next(events), next(events), next(events)
    events.close()
    assert denoiser.held == {}


@pytest.mark.parametrize("broken", [float("nan"), float("-inf")], ids=["nan", "all masked"])
def test_logits_that_are_no_distribution_end_the_request_with_the_place(broken):
    def script(call):
        logits = towards(TEXT)
        if call.prompt == (9,) and call.canvas == 1 and call.step == 1:
            logits[3] = broken
        return logits

    denoiser = ScriptedDenoiser(script, num_slots=2)
    bad = replace(BASE, prompt_ids=(9,), max_tokens=18, stability=3)
    good = replace(BASE, max_tokens=18, stability=3)
    _, done = run(denoiser, bad, good, good)
    assert done[0].finish_reason == "error"
    assert "canvas 1, step 1, position 3" in done[0].error
    assert ids(done[0]) == TEXT
    assert done[0].steps == (4, 2)
    for index in (1, 2):
        assert (ids(done[index]), done[index].finish_reason) == (TEXT * 3, "length")


def test_one_nan_among_good_logits_is_never_a_token():
    def script(call):
        logits = towards(TEXT)
        logits[0, 30] = float("nan")
        return logits

    _, done = run(ScriptedDenoiser(script), BASE)
    assert done[0].finish_reason == "error"
    assert done[0].tokens == ()


def test_masked_logits_leave_the_entropy_whole():
    def script(call):
        logits = towards(TEXT)
        logits[:, 30:] = float("-inf")
        return logits

    events, done = run(ScriptedDenoiser(script), BASE)
    assert done[0].steps == (2,)
    assert all(
        entropy == entropy for event in events if isinstance(event, Denoised) for entropy in event.entropy
    )


def test_pins_hold_at_every_step_are_emitted_and_left_out_of_the_mean():
    def script(call):
        logits = towards((20, 20, 20, 20, 20, 20))
        if call.canvas == 0:
            logits[2] = 0.0  # as unsure as can be, where the pin is
        return logits

    denoiser = ScriptedDenoiser(script)
    events, done = run(denoiser, replace(BASE, pins={2: 33, 7: 34}, max_tokens=12, stability=2))
    assert ids(done[0]) == (20, 20, 33, 20, 20, 20, 20, 34, 20, 20, 20, 20)[:12]
    assert all(call.ids[2] == 33 for call in denoiser.calls if call.canvas == 0)
    assert all(call.ids[1] == 34 for call in denoiser.calls if call.canvas == 1)
    assert done[0].converged_by[0] == "confidence", "the pinned row's entropy was counted"
    assert denoiser.committed == [(0, (20, 20, 33, 20, 20, 20))]
    assert next(pinned.tolist() for _, _, pinned in denoiser.conditioned) == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    first = next(event for event in events if isinstance(event, Denoised))
    assert not first.accepted[2]


def test_a_fully_pinned_canvas_converges():
    _, done = run(
        ScriptedDenoiser(lambda call: torch.zeros(6, 40)), replace(BASE, pins=dict(enumerate(TEXT)))
    )
    assert (ids(done[0]), done[0].steps) == (TEXT, (2,))


def test_a_seed_canvas_is_what_the_first_step_sees():
    denoiser = ScriptedDenoiser(always(*TEXT))
    given = (30, 31, 32, 33, 34, 35, 36, 37)
    run(denoiser, replace(BASE, seed_canvas=given, max_tokens=12))
    starts = [call.ids for call in denoiser.calls if call.step == 0]
    assert starts[0] == given[:6]
    assert starts[1][:2] == given[6:]


def test_the_initial_canvas_covers_the_whole_vocabulary():
    seen = set()
    for seed in range(200):
        denoiser = ScriptedDenoiser(always(*TEXT))
        run(denoiser, replace(BASE, seed=seed))
        seen.update(denoiser.calls[0].ids)
    assert seen == set(range(40))


def mixed_requests():
    return [
        replace(BASE, prompt_ids=(i + 1,), seed=i, max_tokens=4 + 3 * i, stability=i % 4, t_max=0.5 + 0.3 * i)
        for i in range(6)
    ]


def unsure(call):
    """Logits that depend on everything a slot holds, so that any leak or mix-up shows in the tokens."""
    seed = hash((call.prompt, call.canvas, call.step, call.ids)) % 2**31
    return torch.randn(6, 40, generator=torch.Generator().manual_seed(seed)) * 6


def test_a_request_is_the_same_alone_in_company_and_in_any_order():
    requests = mixed_requests()
    alone = [run(ScriptedDenoiser(unsure), request)[1][0] for request in requests]
    assert len({ids(completion) for completion in alone}) == len(alone)
    for num_slots in (2, 3, 6):
        for order in (range(6), reversed(range(6)), (3, 0, 5, 1, 4, 2)):
            order = list(order)
            _, done = run(ScriptedDenoiser(unsure, num_slots=num_slots), *[requests[i] for i in order])
            for place, i in enumerate(order):
                assert replace(done[place], index=0) == alone[i]


def test_nothing_of_a_request_is_left_for_the_slots_next_tenant():
    engine_alone = run(ScriptedDenoiser(unsure), BASE)[1][0]
    loud = replace(
        BASE, pins={0: 39, 5: 38}, seed_canvas=TEXT, top_k=1, top_p=0.5, stability=5, logprobs=3, seed=77
    )
    for first in (loud, replace(loud, prompt_ids=()), replace(loud, max_tokens=9)):
        _, done = run(ScriptedDenoiser(unsure), first, BASE)
        assert replace(done[1], index=0) == engine_alone


def test_equal_prompts_with_other_seeds_differ_and_torchs_generator_has_no_say():
    torch.manual_seed(0)
    first = run(ScriptedDenoiser(unsure), BASE)[1][0]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert run(ScriptedDenoiser(unsure), BASE)[1][0] == first
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
    assert ids(run(ScriptedDenoiser(unsure), replace(BASE, seed=6))[1][0]) != ids(first)


def test_what_does_not_fit_the_context_is_refused_with_the_numbers():
    engine = Engine(ScriptedDenoiser(always(*TEXT), max_context=20), kernels_for("torch", "cpu"))
    engine.check(replace(BASE, prompt_ids=(3,) * 14))
    with pytest.raises(ContextError, match=r"15 prompt tokens and 1 canvas of 6 make 21 .* has 20"):
        engine.check(replace(BASE, prompt_ids=(3,) * 15))
    with pytest.raises(ContextError) as caught:
        engine.check(replace(BASE, prompt_ids=(3,) * 4, max_tokens=20))
    assert "at most 12" in caught.value.hint


@pytest.mark.parametrize(
    "changes", [{"prompt_ids": ()}, {"prompt_ids": (40,)}, {"logprob_ids": (99,)}, {"pins": {0: -1}}], ids=str
)
def test_ids_outside_the_vocabulary_are_refused(changes):
    with pytest.raises(SettingsError):
        Engine(ScriptedDenoiser(always(*TEXT)), kernels_for("torch", "cpu")).check(replace(BASE, **changes))


def test_a_request_that_cannot_run_fails_alone():
    _, done = run(ScriptedDenoiser(always(*TEXT)), replace(BASE, prompt_ids=()), BASE)
    assert (done[0].finish_reason, done[1].finish_reason) == ("error", "length")
