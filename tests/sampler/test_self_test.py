"""The self-test passes where the kernels work, and says what is wrong where one does not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dgen.errors import SettingsError
from dgen.sampler import self_test as room
from dgen.sampler.kernels import kernels_for


def test_working_kernels_agree_with_their_references(device):
    assert room.self_test(device) == []


def test_a_kernel_that_computes_something_else_is_named(device, monkeypatch):
    def broken(name, where):
        kernels = kernels_for("torch", where)
        if name == "torch":
            return kernels

        def row_stats(*args, **keywords):
            argmax, draw, entropy, probs = kernels.row_stats(*args, **keywords)
            return argmax, draw + 1, entropy * 1.01, probs

        return dataclasses.replace(kernels, row_stats=row_stats)

    monkeypatch.setattr(room, "kernels_for", broken)
    wrong = room.self_test(device)
    assert {line.split(" differs")[0] for line in wrong} == {"draw", "entropy"}
    assert any("vocabulary 517, softcap 30" in line for line in wrong)


@pytest.mark.usefixtures("interpreter")
def test_without_a_card_it_is_refused(monkeypatch):
    monkeypatch.setattr("dgen.jit.is_interpreted", lambda: False)
    with pytest.raises(SettingsError, match="need a CUDA device"):
        room.self_test(torch.device("cpu"))
