import sys

import pytest
import torch

from dgen.bench.quantiles import quantile
from dgen.bench.timer import Timer


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ((7.0,), 0.9, 7.0),
        ((3.0, 1.0), 0.5, 2.0),
        ((5.0, 1.0, 3.0), 0.5, 3.0),
        ((0.0, 10.0, 20.0, 30.0, 40.0), 0.1, 4.0),
        ((40.0, 0.0, 20.0, 10.0, 30.0), 0.9, 36.0),
        ((1.0, 2.0), 0.0, 1.0),
        ((1.0, 2.0), 1.0, 2.0),
    ],
)
def test_quantiles_interpolate_between_sorted_neighbours(values, fraction, expected):
    assert quantile(values, fraction) == pytest.approx(expected)


def test_quantiles_agree_with_torch():
    values = torch.rand(37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for fraction in (0.1, 0.5, 0.9):
        assert quantile(values.tolist(), fraction) == pytest.approx(torch.quantile(values, fraction).item())


def test_calls_take_turns_and_the_first_turn_changes(monkeypatch):
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "AB"}
    samples = Timer(torch.device("cpu")).interleave(calls, 3)
    assert order == ["A", "B", "B", "A", "A", "B"]
    assert {name: len(found) for name, found in samples.items()} == {"A": 3, "B": 3}


def test_every_sample_is_kept_as_measured(clock):
    clock += [0.0, 1.0, 10.0, 12.0, 20.0, 25.0, 30.0, 33.0]  # A, B, B, A
    samples = Timer(torch.device("cpu")).interleave({"A": lambda: None, "B": lambda: None}, 2)
    assert samples == {"A": (1.0, 3.0), "B": (2.0, 5.0)}


def test_warming_up_calls_without_a_sample():
    calls = []
    Timer(torch.device("cpu")).warm_up(lambda: calls.append(1))
    assert len(calls) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_the_peak_on_a_cpu_is_what_the_process_holds():
    before = Timer(torch.device("cpu")).warm_up(lambda: None)
    grown = Timer(torch.device("cpu")).warm_up(lambda: torch.ones((before + (64 << 20)) // 4))
    assert grown > before


@pytest.mark.gpu
def test_events_time_the_work_of_a_card_and_its_memory():
    device = torch.device("cuda", 0)
    timer = Timer(device)
    source = torch.ones(1 << 28, dtype=torch.uint8, device=device)
    peak = timer.warm_up(source.clone)
    samples = timer.interleave({"large": source.clone, "small": source[:1024].clone}, 3)
    assert peak >= 2 << 28
    assert min(samples["large"]) > max(samples["small"]) > 0
