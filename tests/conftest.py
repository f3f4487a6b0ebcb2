"""Shared by all tests: without a card, GPU tests are left out and kernels are interpreted.

No test reads the user's DGEN_ variables.
"""

from __future__ import annotations

import os
import signal

# Read when torch is first imported. Tests run side by side, on models too small for a second thread to help.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        # So it is under nohup and in a script's background, and every program that a test starts would inherit it.
        signal.signal(_signal, _handler)
if not torch.cuda.is_available():
    # Read when triton is first imported: without a card, kernels run in its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")
for _name in [name for name in os.environ if name.startswith("DGEN_")]:
    del os.environ[_name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture
def interpreter() -> None:
    """For tests that run kernels on the CPU: where a card is, Triton compiles for it instead."""
    if torch.cuda.is_available():
        pytest.skip("kernels run on the card here")
