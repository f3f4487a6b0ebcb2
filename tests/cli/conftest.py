"""The command line in this process and in processes of its own, on a tiny checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny import tiny_checkpoint

from dgen.cli.main import run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("cli") / "tiny", seed=0, canvas_length=8, window=8)


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def dgen(capfd, monkeypatch) -> Callable[..., Outcome]:
    """Run a command line in this process, stdin being empty."""
    monkeypatch.setenv("DGEN_DEVICE", "cpu")
    null = os.open(os.devnull, os.O_RDONLY)
    saved = os.dup(0)
    os.dup2(null, 0)

    def call(*argv: object) -> Outcome:
        code = run([str(arg) for arg in argv])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    yield call
    os.dup2(saved, 0)
    os.close(saved)
    os.close(null)


@pytest.fixture
def shell(checkpoint) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a bash line in which $DGEN is the program and $MODEL a tiny checkpoint."""

    def call(line: str, **kwargs) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "DGEN": f"{sys.executable} -m dgen",
            "MODEL": str(checkpoint),
            "OMP_NUM_THREADS": "1",
            "DGEN_DEVICE": "cpu",
        }
        return subprocess.run(
            ["bash", "-c", line],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
            **kwargs,
        )

    return call
