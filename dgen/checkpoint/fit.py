"""Whether a checkpoint's weights fit a device, and as which dtype, told without reading or fetching a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dgen.checkpoint import configuration, memory, network, source, target, weights
from dgen.checkpoint.architecture import Architecture
from dgen.errors import CheckpointError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes that the weights need and bytes that are free.

    Args:
        dtype: what `load` would choose.
        need: bytes of the weights by dtype; working memory comes on top.
        free: bytes that can be allocated on `device`.
        here: whether the weights lie on this machine, or would have to be fetched.
        skeleton: the model without memory (meta tensors), in `dtype`.
    """

    name: str
    device: torch.device
    dtype: str
    need: dict[str, int]
    free: int
    here: bool
    skeleton: Any

    @property
    def fitting(self) -> tuple[str, ...]:
        """The dtypes whose weights fit."""
        return tuple(dtype for dtype, need in self.need.items() if need <= self.free)


def fit(
    model: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    free: int | None = None,
) -> Fit:
    """Arguments as of `loading.load`; of a hub model, configuration files are fetched unless `offline`.

    Args:
        free: bytes to judge against; None asks the device.

    Raises:
        CheckpointError, UsageError: whatever would keep the checkpoint from being loaded, memory aside.
    """
    target.check_names(device, dtype)
    place = source.locate(model, revision=revision, offline=offline)
    raw = configuration.read_config(place.path, name=model)
    configuration.require_transformers(name=model)
    where = target.pick_device(device)
    advice = configuration.upgrade_advice(raw)
    config = network.build_config(place.path, name=model, advice=advice)
    skeleton = network.build_skeleton(config, name=model, advice=advice)
    here, stored = True, str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16")
    try:
        stored = weights.main_dtype(weights.read_headers(place.path, name=model))
    except CheckpointError:
        if not place.hub:
            raise
        here = False
    chosen = target.pick_dtype(dtype, stored, where)
    return _fit_of(skeleton, name=model, device=where, dtype=chosen, free=free, here=here)


def fit_architecture(architecture: Architecture, *, device: str = "auto", dtype: str = "auto") -> Fit:
    """As `fit`, of a model that `build_random` would make; errors as there, memory aside."""
    from dgen.checkpoint.random_weights import build_empty

    target.check_names(device, dtype)
    configuration.require_transformers(name=architecture.name)
    where = target.pick_device(device)
    chosen = target.pick_dtype(dtype, "bfloat16", where)
    skeleton = build_empty(architecture)
    return _fit_of(skeleton, name=architecture.name, device=where, dtype=chosen, free=None, here=True)


def _fit_of(
    skeleton: Any, *, name: str, device: torch.device, dtype: str, free: int | None, here: bool
) -> Fit:
    import torch

    entries = network.count_entries(skeleton)
    return Fit(
        name=name,
        device=device,
        dtype=dtype,
        need={kind: entries * int(getattr(torch, kind).itemsize) for kind in ("bfloat16", "float32")},
        free=memory.free_memory(device) if free is None else free,
        here=here,
        skeleton=skeleton.to(getattr(torch, dtype)),
    )
