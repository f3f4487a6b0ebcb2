"""How many CPU threads a small model runs on: one, unless the user says otherwise.

A step of a small model is thousands of tiny operations, and torch's threads spin while they wait for each other. With
the built-in checkpoint on two cores a second thread takes a step from 36 to 28 ms on an idle machine, and from 34 to
700 ms as soon as another process keeps one core busy.
"""

from __future__ import annotations

import os
from typing import Any

SMALL_PARAMETERS = 50_000_000


def settle_threads(model: Any) -> int:
    """Use one thread for a small model on the CPU, unless OMP_NUM_THREADS is set; returns the number in use."""
    import torch

    small = sum(parameter.numel() for parameter in model.parameters()) < SMALL_PARAMETERS
    if small and model.device.type == "cpu" and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)
    return torch.get_num_threads()
