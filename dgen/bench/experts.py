"""How many experts of a layer a step makes use of: each one's weights must be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch


@dataclass(slots=True)
class Routed:
    """Expert ids [tokens, top k] by layer, of each kept decoder pass; nothing is read back before it is asked for."""

    layers: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """Unique experts of a layer over the kept passes, mean over the layers; None where no router has run."""
        if not self.layers:
            return None
        unique = [torch.cat([ids.flatten() for ids in passes]).unique() for passes in self.layers.values()]
        return sum(len(experts) for experts in unique) / len(unique)


@contextmanager
def routed(model: Any, *, keep: Literal["all", "last"]) -> Iterator[Routed]:
    """Keep what the routers of the model's decoder choose inside the block, where transformers' forward runs.

    Args:
        keep: all passes (a batch that goes through the model one request at a time), or the last one.
    """
    found = Routed()

    def hook_of(index: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            passes = found.layers.setdefault(index, [])
            if keep == "last":
                passes.clear()
            passes.append(output[2])

        return hook

    hooks = [
        layer.router.register_forward_hook(hook_of(index))
        for index, layer in enumerate(model.model.decoder.layers)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
