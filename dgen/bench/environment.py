"""The machine and the software that a bench ran on: whatever a reader needs to judge its figures.

Asks the system, imports no package for its version, and answers None where something can't be had.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dgen._version import __version__

_CHECKOUT = Path(__file__).resolve().parents[2]


def environment(device: torch.device) -> dict[str, Any]:
    """JSON data: date (UTC), CPU, threads, load, memory, GPU and driver (None on a CPU), versions, git commit."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": _load_average(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "driver": _driver(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "dgen": __version__,
        "commit": _commit(_CHECKOUT),
    }


def machine(found: dict[str, Any]) -> str:
    """What the figures depend on most, in a few words: the GPU, else the CPU and its threads."""
    return str(found.get("gpu") or f"{found.get('cpu')}, {found.get('threads')} threads")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # Windows has none
        return None


def _driver(device: torch.device) -> str | None:
    answer = _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return answer.splitlines()[0].strip() if answer else None


def _commit(folder: Path) -> str | None:
    """The checkout's commit, with a + where tracked files differ from it; None outside of one."""
    if not (folder / ".git").exists():
        return None
    head = _ask("git", "-C", str(folder), "rev-parse", "HEAD")
    if not head:
        return None
    changed = _ask("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if changed else "")


def _ask(program: str, *arguments: str) -> str | None:
    """What a program prints, stripped; None when it is missing, fails or takes too long."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        answer = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
