"""A small model runs on one thread, unless the user or its size says otherwise."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from dgen.cli import threads


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_small_model_gets_one_thread():
    assert threads.settle_threads(tiny_model()[0]) == torch.get_num_threads() == 1


def test_the_users_own_number_stands(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.settle_threads(tiny_model()[0]) == torch.get_num_threads() == 2


def test_a_model_that_is_not_small_keeps_them(monkeypatch):
    monkeypatch.setattr(threads, "SMALL_PARAMETERS", 10)
    assert threads.settle_threads(tiny_model()[0]) == 2
