"""What a checkpoint's small files say, before its weights are read (or even fetched)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgen.checkpoint import configuration, defaults, source


@dataclass(frozen=True, slots=True)
class Preview:
    """`defaults` and `revision` as they will be in the loaded `Checkpoint`."""

    defaults: Mapping[str, Any]
    revision: str | None


def preview(model: str, *, revision: str | None = None, offline: bool = False) -> Preview:
    """Read the configuration of `builtin`, a folder or a hub name, without importing torch.

    Raises:
        CheckpointError, UsageError: as in `load`, as far as those files tell.
    """
    place = source.locate(model, revision=revision, offline=offline)
    configuration.read_config(place.path, name=model)
    generation = configuration.read_generation(place.path, name=model)
    return Preview(defaults.settings_of(generation, name=model), place.revision)
