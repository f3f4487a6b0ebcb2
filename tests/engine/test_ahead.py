"""A device that is a step ahead of the consumer: nothing that a request says depends on it, whatever ends meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scripted import BASE, TEXT, ScriptedDenoiser, ids, towards

from dgen.engine.engine import Engine
from dgen.engine.events import Committed, Converged, Finished, Prefilled
from dgen.sampler import kernels_for

LONG = replace(BASE, max_tokens=18)  # three canvases


class Counted(ScriptedDenoiser):
    """Tokens that tell prompt and canvas; writes down what it does, in order."""

    def __init__(self, **changes) -> None:
        super().__init__(lambda call: towards([8 + call.prompt[0] + call.canvas] * len(TEXT)), **changes)
        self.done: list[tuple[str, list[int]]] = []
        self.commits_left = 10**6

    def denoise(self, slots, canvas):
        self.done.append(("step", slots.tolist()))
        return super().denoise(slots, canvas)

    def commit(self, slots, canvas):
        self.commits_left -= 1
        if self.commits_left < 0:
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        self.done.append(("commit", slots.tolist()))
        super().commit(slots, canvas)


def engine_of(denoiser, *, ahead=True) -> Engine:
    engine = Engine(denoiser, kernels_for("torch", "cpu"))
    engine._steps.ahead = ahead
    return engine


def alone(request):
    (done,) = (e for e in engine_of(Counted(), ahead=False).run([request]) if isinstance(e, Finished))
    return done.completion


@pytest.mark.parametrize("may_stop", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_canvas_is_begun_before_the_last_is_looked_at_unless_that_may_end_it(ahead, may_stop):
    denoiser = Counted()
    request = replace(LONG, may_stop=may_stop)
    seen = {}
    for event in engine_of(denoiser, ahead=ahead).run([request]):
        if isinstance(event, Converged):
            seen[event.canvas] = [name for name, _ in denoiser.done]
        if isinstance(event, Finished):
            assert event.completion == alone(request)
    early = ahead and not may_stop
    assert seen[0].count("commit") == (1 if early else 0)
    assert seen[0][-1] == "step", "the next step is launched behind the commit"
    assert seen[2].count("commit") == 2, "the last canvas is never committed"


@pytest.mark.parametrize("stability", [0, 1])
def test_a_stop_that_nobody_expected_drops_what_was_begun_and_the_slot_serves_the_next(stability):
    stopped = replace(LONG, stability=stability)  # with 0 the step that ran ahead converges too
    others = [replace(LONG, prompt_ids=(n, 3), seed=n) for n in (2, 3)]
    denoiser = Counted(num_slots=2)
    engine, ended, kept = engine_of(denoiser), {}, 0
    for event in engine.run([stopped, *others]):
        assert event.index not in ended, "a request goes on after its end"
        if isinstance(event, Converged) and (event.index, event.canvas) == (0, 0):
            engine.stop(0, 2)
        if isinstance(event, Committed) and event.index == 0:
            kept += 1
        if isinstance(event, Finished):
            ended[event.index] = event.completion
    assert ended[0].finish_reason == "stop"
    assert ids(ended[0]) == ids(alone(stopped))[:2]
    assert not kept, "a canvas behind a stop is committed to nobody"
    for index, request in enumerate(others, 1):
        assert replace(ended[index], index=0) == alone(request)
    assert not denoiser.held


def test_an_interrupt_keeps_the_canvas_whose_successor_was_begun():
    engine = engine_of(Counted())
    ended = []
    for event in engine.run([LONG]):
        if isinstance(event, Converged):
            engine.interrupt()
        if isinstance(event, Finished):
            ended.append(event.completion)
    assert ended[0].finish_reason == "interrupted"
    assert ids(ended[0]) == ids(alone(LONG))[:6]
    assert [e.completion for e in engine.run([LONG]) if isinstance(e, Finished)] == [alone(LONG)]


def test_memory_that_runs_out_in_a_commit_ends_those_that_needed_it():
    slow = replace(LONG, prompt_ids=(3, 3), confidence=0.0, steps=7)  # still at its first canvas
    denoiser = Counted(num_slots=2)
    denoiser.commits_left = 0
    engine, ended, converged = engine_of(denoiser), {}, []
    for event in engine.run([LONG, slow]):
        if isinstance(event, Converged):
            converged.append(event.index)
            if event.index == 0:
                denoiser.commits_left = 10**6
        if isinstance(event, Finished):
            ended[event.index] = event.completion
    assert converged[0] == 0, "what it found is told before its end"
    assert (ended[0].finish_reason, ended[0].out_of_memory) == ("error", True)
    assert ids(ended[0]) == ids(alone(LONG))[:6]
    assert replace(ended[1], index=0) == alone(slow)


def test_a_slot_that_becomes_free_is_filled_before_the_next_step():
    short, late = replace(BASE, prompt_ids=(2, 3)), replace(LONG, prompt_ids=(4, 3))
    slow = replace(LONG, prompt_ids=(3, 3), confidence=0.0, steps=7)
    denoiser = Counted(num_slots=2)
    before, ended = [], {}
    for event in engine_of(denoiser).run([slow, short, late]):
        if isinstance(event, Prefilled) and event.index == 2:
            before = [slots for name, slots in denoiser.done if name == "step"]
        if isinstance(event, Finished):
            ended[event.index] = event.completion
    assert before == [[0, 1]] * sum(ended[1].steps), "a step ran between the end and the admission"
    assert ("step", [0, 1]) in denoiser.done[len(before) :], "the next one takes the place"
