"""What a checkpoint says about decoding: dgen's settings in generation_config.json, and where text ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dgen.errors import CheckpointError

SAMPLER = "EntropyBoundSamplerConfig"

_SETTINGS = {
    "max_new_tokens": "max_tokens",
    "max_denoising_steps": "steps",
    "t_min": "t_min",
    "t_max": "t_max",
    "stability_threshold": "stability",
    "confidence_threshold": "confidence",
}


def settings_of(generation: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """The dgen settings that generation_config.json sets, unchecked; unset (null) ones are left out.

    Raises:
        CheckpointError: the checkpoint asks for a sampler that dgen doesn't have.
    """
    found = {
        ours: generation[theirs] for theirs, ours in _SETTINGS.items() if generation.get(theirs) is not None
    }
    sampler = generation.get("sampler_config") or {}
    if not isinstance(sampler, Mapping) or sampler.get("_cls_name", SAMPLER) != SAMPLER:
        kind = sampler.get("_cls_name") if isinstance(sampler, Mapping) else sampler
        raise CheckpointError(
            f"generation_config.json of {name} asks for the sampler {kind}; dgen has {SAMPLER} alone",
            hint="Remove sampler_config from that file to decode with the entropy bound.",
        )
    if sampler.get("entropy_bound") is not None:
        found["entropy_bound"] = sampler["entropy_bound"]
    return found


def eos_ids(sources: Iterable[Any], *, vocab_size: int) -> frozenset[int]:
    """The union of EOS entries, each an id, a list of ids or None, without ids that the model can't emit."""
    ids: set[int] = set()
    for entry in sources:
        for item in entry if isinstance(entry, (list, tuple)) else [entry]:
            if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocab_size:
                ids.add(item)
    return frozenset(ids)
