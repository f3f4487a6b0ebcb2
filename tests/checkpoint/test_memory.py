"""Too little memory is told before weights are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from breaking import refusal

from dgen.checkpoint import memory, network


def test_too_little_memory_says_need_and_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1_000)
    monkeypatch.setattr(network, "count_entries", lambda model: 13_000_000_000)
    error = refusal(folder)
    assert "needs 52.0 GB in main memory as float32, and 0.0 GB are free" in error.message
    assert "bfloat16" in error.hint
    assert "needs 26.0 GB" in refusal(folder, dtype="bfloat16").message


def test_free_memory_is_the_lesser_of_host_and_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert 0 < memory.free_memory(cpu) < 2**50

    files = [tmp_path / name for name in ("meminfo", "max", "current", "stat")]
    for file, text in zip(
        files,
        ("MemTotal: 9 kB\nMemAvailable: 4000 kB\n", "3000000\n", "2000000\n", "inactive_file 500000\n"),
        strict=True,
    ):
        file.write_text(text)
    monkeypatch.setattr(memory, "_MEMINFO", files[0])
    monkeypatch.setattr(memory, "_CGROUPS", [tuple(map(str, files[1:]))])
    assert memory.free_memory(cpu) == 1_500_000
    files[1].write_text("max\n")
    assert memory.free_memory(cpu) == 4000 * 1024
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.free_memory(cpu) > 0
