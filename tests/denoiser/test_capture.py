"""Captured calls on a card."""

from __future__ import annotations

import pytest
import torch

from dgen.denoiser.capture import capture

pytestmark = pytest.mark.gpu


def test_a_graph_keeps_what_its_function_reads():
    device = torch.device("cuda", 0)

    def captured():
        held = torch.full((1 << 22,), 3.0, device=device)
        return capture(lambda x: x + held, torch.zeros(1, device=device))

    replay = captured()
    torch.cuda.empty_cache()
    torch.full((1 << 22,), 7.0, device=device)  # takes the place of what was freed
    assert (replay.replay(torch.ones(1)) == 4.0).all()
