"""How much memory is free, in bytes, for weights that are about to be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dgen.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (  # limit, usage, the file whose entry says how much of the usage is cache that yields
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`; on the host, those that its cgroup allows."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return min(_free_on_host(), _free_in_cgroup())


def require_memory(need: int, device: torch.device, *, name: str, dtype: str) -> None:
    """Raise CheckpointError unless `need` bytes are free on `device`."""
    have = free_memory(device)
    if need <= have:
        return
    where = f"on {device}" if device.type == "cuda" else "in main memory"
    hint = "Free some memory, or use a bigger machine."
    if dtype == "float32":
        hint = "Try --dtype bfloat16, which halves it, or free some memory."
    raise CheckpointError(
        f"{name} needs {need / 1e9:.1f} GB {where} as {dtype}, and {have / 1e9:.1f} GB are free", hint=hint
    )


def _free_on_host() -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # No Linux: the installed memory is all that the standard library can tell.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_in_cgroup() -> int:
    for limit_path, usage_path, stat_path in _CGROUPS:
        try:
            limit = Path(limit_path).read_text().strip()
            usage = int(Path(usage_path).read_text())
            stat = dict(line.split() for line in Path(stat_path).read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit != "max":
            cache = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
            return max(0, int(limit) - usage + cache)
    return 2**63 - 1
