"""A batch of requests that is run to its end, or says that it was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import BASE, TEXT, ScriptedDenoiser, towards

from dgen.engine.engine import Engine
from dgen.infill.scoring import Runner
from dgen.sampler import kernels_for

REQUESTS = [replace(BASE, seed=seed) for seed in range(5)]


def engine() -> Engine:
    return Engine(ScriptedDenoiser(lambda call: towards(TEXT), num_slots=2), kernels_for("torch", "cpu"))


@pytest.mark.parametrize("last", [1, 4, 5])
def test_an_interrupt_is_not_lost_in_the_last_step_either(last):
    mine = engine()

    def progress(doing: str, done: int, total: int) -> None:
        if done == last:
            mine.interrupt()

    with pytest.raises(KeyboardInterrupt):
        Runner(mine, progress).complete(REQUESTS, "trying")
    assert len(Runner(mine).complete(REQUESTS, "trying")) == 5  # it was for that batch alone


def test_an_interrupt_before_a_batch_ends_it_however_few_it_has():
    mine = engine()
    for requests in (REQUESTS, []):
        mine.interrupt()
        with pytest.raises(KeyboardInterrupt):
            Runner(mine).complete(requests, "trying")
        assert Runner(mine).complete([], "trying") == []
