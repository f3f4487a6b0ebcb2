"""What the tests of the bench share: a bench of one repeat, a tiny model in an engine, and a clock that is told."""

from __future__ import annotations

import pytest
from timed import CPU, PLENTY, tiny_stand

from dgen.bench.measure import Bench
from dgen.bench.subject import Stand
from dgen.bench.timer import Timer


@pytest.fixture
def bench() -> Bench:
    """One repeat on the CPU, with more memory than anyone needs."""
    return Bench(Timer(CPU), 1, lambda _: PLENTY, lambda _: None)


@pytest.fixture
def stand() -> Stand:
    return tiny_stand()


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """What time.perf_counter will answer, to be filled."""
    ticks: list[float] = []
    monkeypatch.setattr("dgen.bench.timer.time.perf_counter", lambda: ticks.pop(0))
    return ticks
