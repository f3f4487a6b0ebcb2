"""The choice of an implementation, and a machine without Triton."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from dgen.errors import SettingsError
from dgen.sampler import kernels_for

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
import torch
from dgen.errors import SettingsError
from dgen.sampler import kernels_for, sample_row_stats

for device in ("cpu", "cuda"):
    assert kernels_for("auto", device).name == kernels_for("torch", device).name == "torch"
kernels = kernels_for("auto", "cpu")
argmax, draw, entropy, probs = kernels.row_stats(torch.tensor([[0.0, 9.0]]), torch.zeros(1), 1, 3, None)
assert argmax.tolist() == draw.tolist() == [1]
for ask in (
    lambda: kernels_for("triton", "cpu"),
    lambda: kernels_for("triton", "cuda"),
    lambda: sample_row_stats(torch.zeros(1, 2), torch.ones(1), 1, 3, None),
):
    try:
        ask()
    except SettingsError as error:
        assert "not installed" in error.message and "pip install triton" in error.hint
    else:
        raise SystemExit("triton was not missed")
"""

WITHOUT_A_CARD = """
import torch
from dgen.errors import SettingsError
from dgen.sampler import kernels_for

try:
    kernels_for("triton", "cpu")
except SettingsError as error:
    assert "'cpu'" in error.message and "torch" in error.hint
else:
    raise SystemExit("triton was promised on the CPU")
"""


def run_python(code: str) -> None:
    """In a process of its own, with the kernels not interpreted."""
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_auto_is_torch_without_a_card():
    assert kernels_for("auto", "cpu").name == "torch"
    assert kernels_for("auto", torch.device("cpu")).name == "torch"


def test_auto_is_triton_on_a_card():
    assert kernels_for("auto", "cuda").name == "triton"


def test_an_unknown_kernel_is_refused_with_the_names():
    with pytest.raises(SettingsError, match="cutlass") as error:
        kernels_for("cutlass", "cpu")
    assert "auto, triton, torch" in error.value.hint


def test_without_triton_everything_but_its_kernels_works():
    run_python(WITHOUT_TRITON)


def test_triton_on_the_cpu_is_refused_unless_interpreted():
    run_python(WITHOUT_A_CARD)
