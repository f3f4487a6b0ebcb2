"""Steps as graphs, with a stand-in for CUDA's: buckets, padding with the spare row, refusals, capturing anew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from scripted import BASE, TEXT, towards

from dgen.engine import steps as steps_module
from dgen.engine.canvas import CanvasState
from dgen.engine.engine import Engine
from dgen.engine.events import Denoised, Finished, Prefilled
from dgen.engine.steps import Steps, bucket
from dgen.sampler import kernels_for

CPU = torch.device("cpu")
KERNELS = kernels_for("torch", "cpu")


@dataclass
class Capturable:
    """Logits from a slot's number and its canvas alone; the spare slot takes part in every pass."""

    num_slots: int = 6
    canvas_len: int = 6
    vocab_size: int = 40
    max_context: int = 10_000
    name: str = "capturable"
    device: torch.device = CPU
    softcap: float | None = None
    probs_dtype: torch.dtype | None = torch.float32
    capturable: bool = True
    sure: float = 20.0
    batches: list[list[int]] = field(default_factory=list)
    prepared: int = 0

    def prepare(self, tell=None) -> None:
        self.prepared += 1

    def prefill(self, slot, ids) -> None:
        assert slot < self.num_slots

    def denoise(self, slots, canvas):
        self.batches.append(slots.tolist())
        rows = [towards(TEXT, sure=self.sure) + 0.01 * slot for slot in slots.tolist()]
        return torch.cat(rows)

    def condition(self, slots, logits, temps, probs, pinned) -> None:
        assert len(probs) == len(slots) * self.canvas_len

    def commit(self, slots, ids) -> None:
        assert (slots < self.num_slots).all(), "the spare slot was committed"

    def release(self, slot) -> None:
        assert slot < self.num_slots


class Captures:
    """Stands where `capture` does: a graph is the function itself, its inputs those that it was captured with."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.fail: dict[int, Exception] = {}
        self.replays = 0
        self.cut_off = False

    def __call__(self, function, *inputs, pool=None):
        size = len(inputs[0])
        self.sizes.append(size)
        if size in self.fail:
            raise self.fail[size]
        function(*inputs)
        outer = self

        class Graph:
            values = inputs

            def replay(self, *values):
                assert [v.shape for v in values] == [i.shape for i in inputs]
                self.values = values
                if outer.cut_off:
                    raise RuntimeError("the launch failed")
                return self.again()

            def again(self):
                outer.replays += 1
                return function(*self.values)

        return Graph()


class Letter:
    """Stands where `Post` does: keeps what was sent last."""

    def __init__(self, size: int, canvas_len: int) -> None:
        self.shape = (size, 3 * canvas_len + 3)

    def send(self, packed: torch.Tensor) -> None:
        assert packed.shape == self.shape
        self.held = packed.clone()

    def receive(self) -> torch.Tensor:
        return self.held.clone()


@pytest.fixture
def captures(monkeypatch):
    made = Captures()
    monkeypatch.setattr(steps_module, "capture", made)
    monkeypatch.setattr(steps_module, "Post", Letter)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return made


def steps_of(denoiser) -> Steps:
    """Steps that believe in graphs though the device is a CPU."""
    state = CanvasState(denoiser.num_slots, denoiser.canvas_len, denoiser.vocab_size, CPU, KERNELS)
    made = Steps(state, denoiser, KERNELS, graphs=True)
    assert not made._graphs, "a CPU has no graphs"
    assert not made.ahead
    made._graphs = True
    return made


def engine_of(denoiser, *, ahead=False) -> Engine:
    engine = Engine(denoiser, KERNELS)
    engine._steps._graphs, engine._steps.ahead = True, ahead
    return engine


def run(engine, *requests):
    events = list(engine.run(requests))
    return events, {e.index: e.completion for e in events if isinstance(e, Finished)}


@pytest.mark.parametrize(
    ("num_slots", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 4, 6, 6]), (8, [1, 2, 4, 4, 8, 8, 8, 8])],
)
def test_a_bucket_is_the_next_power_of_two_or_all_slots(num_slots, sizes):
    assert [bucket(m, num_slots) for m in range(1, num_slots + 1)] == sizes


def test_every_bucket_is_captured_once_the_largest_first_and_told(captures):
    denoiser = Capturable(num_slots=6)
    made, told = steps_of(denoiser), []
    made.prepare(told.append)
    assert captures.sizes == [6, 4, 2, 1]
    assert denoiser.prepared == 1
    assert [line.split(" in ")[0] for line in told] == [
        "steps: compiled",
        *(f"steps of {size}: captured" for size in (6, 4, 2, 1)),
    ]
    made.prepare()
    assert captures.sizes == [6, 4, 2, 1]
    # The runs before capturing are the spare slot's alone.
    assert {slot for batch in denoiser.batches for slot in batch} == {6}


def test_a_batch_is_padded_with_the_spare_row_which_changes_no_other(captures):
    denoiser = Capturable(num_slots=6)
    made = steps_of(denoiser)
    for slot in range(6):
        made._state.admit(slot, replace(BASE, seed=slot))
    plain = Steps(made._state, denoiser, KERNELS, graphs=False)
    before = {
        name: getattr(made._state, name).clone() for name in ("ids", "step", "seen", "argmax", "history")
    }
    result = made.run([4, 1, 3], filtered=False)
    assert denoiser.batches[-1] == [4, 1, 3, 6]
    padded = {name: getattr(made._state, name).clone() for name in before}
    for name, value in before.items():
        getattr(made._state, name).copy_(value)
    want = plain.run([4, 1, 3], filtered=False)
    for name in result.__slots__:
        got, expected = getattr(result, name), getattr(want, name)
        if isinstance(got, torch.Tensor):
            assert torch.equal(got, expected), name
    for name, value in padded.items():
        assert torch.equal(value[:6], getattr(made._state, name)[:6]), name
        assert torch.equal(value[[0, 2, 5]], before[name][[0, 2, 5]]), name


def test_filtered_steps_run_eagerly_and_unpadded(captures):
    denoiser = Capturable(num_slots=6)
    made = steps_of(denoiser)
    for slot in range(3):
        made._state.admit(slot, replace(BASE, top_k=2))
    made.run([0, 1, 2], filtered=True)
    assert captures.sizes == []
    assert denoiser.batches == [[0, 1, 2]]


def test_a_capture_that_fails_is_told_with_its_reason_and_runs_eagerly(captures):
    captures.fail[4] = RuntimeError("operation not permitted when stream is capturing\nmore lines")
    denoiser, told = Capturable(num_slots=4), []
    made = steps_of(denoiser)
    made.prepare(told.append)
    assert told[1] == ("steps of 4: eager, capture failed: operation not permitted when stream is capturing")
    assert all("captured in" in line for line in told[2:])
    for slot in range(4):
        made._state.admit(slot, BASE)
    made.run([0, 1, 2], filtered=False)
    assert denoiser.batches[-1] == [0, 1, 2], "eager steps need no padding"
    made.run([0, 1], filtered=False)
    assert captures.replays == 1
    made.prepare()
    assert captures.sizes.count(4) == 1, "a refusal is not tried again"


def test_memory_that_runs_out_in_a_capture_ends_those_requests_and_no_later_ones(captures):
    captures.fail[2] = torch.OutOfMemoryError("tried to allocate 3.00 GiB")
    engine = engine_of(Capturable(num_slots=2))
    _, done = run(engine, BASE, BASE)
    assert [done[i].finish_reason for i in (0, 1)] == ["error", "error"]
    assert done[0].out_of_memory
    assert "3.00 GiB" in done[0].error
    assert run(engine, BASE)[1][0].finish_reason == "length"
    captures.fail.clear()
    _, done = run(engine, BASE, BASE)
    assert [done[i].finish_reason for i in (0, 1)] == ["length", "length"], "out of memory is tried again"


@pytest.mark.parametrize("ahead", [False, True])
def test_the_engine_says_the_same_with_and_without_graphs(captures, ahead):
    requests = [
        replace(BASE, max_tokens=18, logprobs=2, seed=3),
        replace(BASE, steps=3, top_k=3, logprobs=1, seed=4),
        replace(BASE, max_tokens=7, stability=0, seed=5),
        replace(BASE, max_tokens=12, stability=4, seed=6),
        replace(BASE, seed=7, pins={2: 30}),
    ]
    plain = list(Engine(Capturable(num_slots=3, sure=3.0), KERNELS).run(requests))
    graphed = list(engine_of(Capturable(num_slots=3, sure=3.0), ahead=ahead).run(requests))
    assert captures.replays
    assert graphed == plain


def test_a_deeper_history_is_captured_anew(captures):
    denoiser = Capturable(num_slots=1)
    engine = engine_of(denoiser)
    engine.prepare()
    assert captures.sizes == [1]
    alone = run(Engine(Capturable(num_slots=1), KERNELS), replace(BASE, stability=5))[1][0]
    assert run(engine, replace(BASE, stability=5))[1][0] == alone
    assert captures.sizes == [1, 1]
    run(engine, replace(BASE, stability=3))
    assert captures.sizes == [1, 1], "a shallower one fits"


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_a_step_that_ran_ahead_is_dropped_with_the_run(captures, how):
    plain = run(Engine(Capturable(num_slots=2, sure=3.0), KERNELS), replace(BASE, logprobs=1))[1][0]
    engine = engine_of(Capturable(num_slots=2, sure=3.0), ahead=True)
    events = engine.run([BASE, replace(BASE, seed=9)])
    for event in events:
        if isinstance(event, Denoised) and event.step == 2:
            break
    if how == "interrupt":
        engine.interrupt()
        assert {e.completion.finish_reason for e in events if isinstance(e, Finished)} == {"interrupted"}
    else:
        events.close()
    assert engine._launched is None
    assert run(engine, replace(BASE, logprobs=1))[1][0] == plain


def test_a_launch_that_was_cut_off_leaves_no_step_to_the_wrong_slots(captures):
    denoiser = Capturable(num_slots=4)
    made = steps_of(denoiser)
    made.run([0, 1], filtered=False)
    captures.cut_off = True
    with pytest.raises(RuntimeError):
        made.run([2, 3], filtered=False)
    captures.cut_off = False
    made.run([0, 1], filtered=False)
    assert denoiser.batches[-1] == [0, 1]


class Stream:
    """Requests that arrive while others run: an end may be for now."""

    def __init__(self, *requests) -> None:
        self.requests, self.open = list(requests), 1

    def __iter__(self):
        return self

    def __next__(self):
        if not self.open or not self.requests:
            raise StopIteration
        self.open -= 1
        return self.requests.pop(0)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_that_arrives_while_another_runs_takes_part_in_the_next_step_but_one(captures, ahead):
    engine = engine_of(Capturable(num_slots=2, sure=0.5), ahead=ahead)
    stream = Stream(replace(BASE, steps=20), replace(BASE, steps=20, seed=8))
    arrived, others = None, 0
    for event in engine.run(stream):
        if isinstance(event, Denoised) and event.index == 0 and event.step == 3:
            stream.open = 1
        if isinstance(event, Prefilled) and event.index == 1:
            arrived = others
        if isinstance(event, Denoised) and event.index == 0:
            others += 1
        if isinstance(event, Denoised) and event.index == 1:
            break
    assert arrived is not None
    assert others - arrived <= 2


def test_memory_that_runs_out_in_a_step_ahead_ends_whoever_may_have_moved_on(captures):
    """A newcomer's row may be a step further on the device than the host knows: its tokens would be wrong."""
    engine = engine_of(Capturable(num_slots=2, sure=0.5), ahead=True)
    stream = Stream(replace(BASE, steps=20), replace(BASE, steps=20, seed=8))
    steps, run_step = [], engine._steps.run

    def run_out(slots, *, filtered):
        result = run_step(slots, filtered=filtered)
        steps.append(len(slots))
        if steps.count(2) == 1:
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        return result

    engine._steps.run = run_out
    done = {}
    for event in engine.run(stream):
        if isinstance(event, Denoised) and event.index == 0 and event.step == 3:
            stream.open = 1
        if isinstance(event, Finished):
            done[event.index] = event.completion
    assert set(done) == {0, 1}
    assert all(completion.out_of_memory for completion in done.values())
