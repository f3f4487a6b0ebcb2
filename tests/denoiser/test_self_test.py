"""The self-test passes where the fused denoiser works, and names the pass where something is wrong."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from dgen.denoiser import self_test as room
from dgen.denoiser.reference import ReferenceDenoiser

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def small(device: str, dtype: torch.dtype = torch.float32):
    return tiny_model(seed=3, canvas_length=3, window=4)[0].to(dtype).to(device)


def test_working_kernels_agree_with_transformers(device, dtype):
    assert room.self_test(small(device, dtype)) == []


class Plain(ReferenceDenoiser):
    """Stands in for the fused one: quickly, and in bf16, where the interpreter is wrong; `off` spoils its logits."""

    off = 0.0

    def __init__(self, model, *, num_slots, graphs):
        super().__init__(model, num_slots=num_slots)

    def denoise(self, slots, canvas):
        return super().denoise(slots, canvas) * (1 + self.off)


@pytest.mark.usefixtures("interpreter")
def test_what_is_computed_otherwise_is_named_by_its_pass(monkeypatch):
    class Forgetful(Plain):
        def condition(self, *_):
            """What is fed back gets lost."""

    monkeypatch.setattr(room, "FusedDenoiser", Forgetful)
    wrong = room.self_test(small("cpu"))
    assert [line.split(" differs")[0] for line in wrong] == [
        f"a self-conditioned step behind {count} tokens" for count in (3, 5, 12)
    ]


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("off", [0.0, 0.5, float("nan")])
def test_bf16_is_measured_by_transformers_own_distance_to_fp32(monkeypatch, off):
    monkeypatch.setattr(Plain, "off", off)
    monkeypatch.setattr(room, "FusedDenoiser", Plain)
    wrong = room.self_test(small("cpu", torch.bfloat16))
    assert (wrong == []) == (off == 0.0)
    assert all("differs by" in line for line in wrong)


@pytest.mark.usefixtures("interpreter")
def test_one_expert_chosen_by_a_rounding_is_no_finding(monkeypatch):
    seeds = []

    def differences(model, *, seed):
        seeds.append(seed)
        return ["the first step behind 3 tokens differs by 1.0e-02"] if seed == 1 else []

    monkeypatch.setattr(room, "_differences", differences)
    assert room.self_test(None) == []
    assert seeds == [1, 2]
