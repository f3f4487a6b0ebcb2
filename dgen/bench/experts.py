"""How many experts of a layer a step makes use of: each one's weights must be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Routed:
    """Expert ids by layer, of every decoder pass since the last `clear`."""

    layers: dict[int, set[int]] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin anew."""
        self.layers.clear()

    @property
    def mean(self) -> float | None:
        """Unique experts of a layer, mean over the layers; None where no router of transformers' has run."""
        if not self.layers:
            return None
        return sum(len(experts) for experts in self.layers.values()) / len(self.layers)


@contextmanager
def routed(model: Any) -> Iterator[Routed]:
    """Keep what the routers of the model's decoder choose inside the block, where transformers' forward runs."""
    found = Routed()

    def keep(index: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            found.layers.setdefault(index, set()).update(output[2].unique().tolist())

        return hook

    hooks = [
        layer.router.register_forward_hook(keep(index))
        for index, layer in enumerate(model.model.decoder.layers)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
