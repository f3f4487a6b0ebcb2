"""What is held of a prompt, when it is used again, and what a failure leaves of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import BASE, TEXT, ScriptedDenoiser, towards

from dgen.engine.engine import Engine
from dgen.engine.events import Finished, Prefilled
from dgen.errors import DgenError, SettingsError
from dgen.sampler import kernels_for


@pytest.fixture
def denoiser():
    return ScriptedDenoiser(lambda call: towards(TEXT), num_slots=2)


@pytest.fixture
def engine(denoiser):
    engine = Engine(denoiser, kernels_for("torch", "cpu"))
    engine.hold_prefix()
    return engine


def ask(engine, ids, hold):
    """The `Prefilled` event of a request, which has to end well."""
    *events, last = engine.run([replace(BASE, prompt_ids=tuple(ids), hold=hold)])
    assert isinstance(last, Finished)
    assert last.completion.finish_reason == "length"
    return next(event for event in events if isinstance(event, Prefilled))


def prompts(denoiser):
    """The whole prompts that the passes saw, one for each request."""
    return list(dict.fromkeys(call.prompt for call in denoiser.calls))


def test_a_prompt_that_goes_on_reads_what_is_new(engine, denoiser):
    assert ask(engine, (2, 3, 4, 9), hold=3).reused == 0
    assert ask(engine, (2, 3, 4, 5, 6, 9), hold=5).reused == 3
    assert ask(engine, (2, 3, 4, 5, 6, 9), hold=5).reused == 5
    assert denoiser.extended == [(1, (2, 3, 4)), (0, (9,)), (1, (5, 6)), (0, (9,)), (0, (9,))]
    assert prompts(denoiser) == [(2, 3, 4, 9), (2, 3, 4, 5, 6, 9)]


def test_another_beginning_starts_anew(engine, denoiser):
    ask(engine, (2, 3, 4), hold=3)
    assert ask(engine, (2, 3, 5, 6), hold=3).reused == 0
    assert ask(engine, (2, 3, 5, 7), hold=3).reused == 3
    assert ask(engine, (2, 3), hold=2).reused == 0  # shorter than what is held, which can't be cut
    assert prompts(denoiser) == [(2, 3, 4), (2, 3, 5, 6), (2, 3, 5, 7), (2, 3)]


def test_a_request_that_holds_nothing_leaves_what_is_held(engine, denoiser):
    ask(engine, (2, 3, 4), hold=3)
    assert ask(engine, (8, 9), hold=0).reused == 0
    assert denoiser.prefilled == [(0, (8, 9))]
    assert ask(engine, (2, 3, 4, 5), hold=0).reused == 3
    assert ask(engine, (2, 3, 4, 6), hold=4).reused == 3


def test_without_a_place_for_it_nothing_is_held(denoiser):
    engine = Engine(denoiser, kernels_for("torch", "cpu"))
    assert ask(engine, (2, 3, 4), hold=3).reused == 0
    assert ask(engine, (2, 3, 4), hold=3).reused == 0
    assert engine.max_running == 2


def test_no_request_takes_the_slot_of_what_is_held(engine, denoiser):
    ask(engine, (2, 3, 4), hold=3)
    events = list(engine.run([replace(BASE, seed=n) for n in range(3)]))
    assert {event.slot for event in events if isinstance(event, Prefilled)} == {0}
    assert denoiser.held[1][0] == (2, 3, 4)


@pytest.mark.parametrize("failure", [DgenError("no"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_half_a_prefix_is_never_taken_for_a_whole_one(engine, denoiser, monkeypatch, failure):
    ask(engine, (2, 3, 4), hold=3)

    def fail(slot, ids):
        raise failure

    with monkeypatch.context() as broken:
        broken.setattr(denoiser, "extend", fail)
        try:
            *_, last = engine.run([replace(BASE, prompt_ids=(2, 3, 4, 5), hold=4)])
            assert last.completion.finish_reason == "error"
        except KeyboardInterrupt:
            pass
    assert ask(engine, (2, 3, 4, 5), hold=4).reused == 0
    assert denoiser.held[1][0] == (2, 3, 4, 5)
    assert ask(engine, (2, 3, 4, 5, 6), hold=5).reused == 4


def test_more_than_the_prompt_can_not_be_held(engine):
    with pytest.raises(SettingsError, match=r"hold must lie in \[0, 3\], not 4"):
        engine.check(replace(BASE, hold=4))
