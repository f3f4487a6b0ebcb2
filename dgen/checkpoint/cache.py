"""The hub's local cache and whether the hub may be asked: what doctor tells of them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HubCache:
    """Where fetched checkpoints are kept.

    Args:
        folder: may not exist yet.
        writable: whether a file could be made there.
        free: bytes left on its disk.
        offline: whether the environment (HF_HUB_OFFLINE) forbids the network.
    """

    folder: Path
    writable: bool
    free: int
    offline: bool


def hub_cache() -> HubCache:
    """The cache that `source` would use."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    # Of a folder that would have to be made first, its nearest parent decides.
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    return HubCache(
        folder=folder,
        writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        free=shutil.disk_usage(existing).free,
        offline=bool(constants.HF_HUB_OFFLINE),
    )
