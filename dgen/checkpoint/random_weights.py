"""An architecture -> transformers' model with random weights, made where it will run: nothing is read or copied.

The values are chosen so that activations keep their size through the layers, logits spread like a language
model's, and tokens differ enough to be routed to all experts. The text such a model writes means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from dgen.checkpoint import memory, network, target
from dgen.checkpoint.architecture import Architecture
from dgen.checkpoint.configuration import require_transformers
from dgen.errors import SettingsError

if TYPE_CHECKING:
    import torch

_LOGIT_SPREAD = 3.0  # standard deviation of the logits of a token that the canvas doesn't hold
# Of an attention score: a head looks at a few positions. Else tokens grow alike, and a third of the experts idle.
_QUERY_SPREAD = 4.0


def build_random(
    architecture: Architecture, *, device: str = "auto", dtype: str = "auto", seed: int = 0
) -> Any:
    """DiffusionGemmaForBlockDiffusion in eval mode, without gradients, on the device, in the dtype.

    Args:
        device, dtype: as in `dgen.checkpoint.load`; auto takes bf16 on CUDA, fp32 on a CPU.
        seed: of the weights; the values depend on the device too.

    Raises:
        SettingsError: the fields describe no model.
        CheckpointError: too little memory is free, or transformers is too old.
        UsageError: a device or dtype that can't be had.
    """
    target.check_names(device, dtype)
    require_transformers(name=architecture.name)
    where = target.pick_device(device)
    chosen = target.pick_dtype(dtype, "bfloat16", where)
    import torch

    model = build_empty(architecture, dtype=getattr(torch, chosen))
    need = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    memory.require_memory(need, where, name=architecture.name, dtype=chosen)
    target.make_current(where)
    with torch.no_grad():
        _make_parameters(model, where)
        _make_buffers(model, where)
        _fill(model, torch.Generator(where).manual_seed(seed))
    return model.eval().requires_grad_(False)


def build_empty(architecture: Architecture, *, dtype: torch.dtype | None = None) -> Any:
    """The model without memory (meta tensors), in `dtype` or torch's default one.

    Raises:
        SettingsError: the fields describe no model.
    """
    import torch
    from transformers import (
        DiffusionGemmaConfig,
        DiffusionGemmaForBlockDiffusion,
        DiffusionGemmaTextConfig,
        Gemma4VisionConfig,
    )

    tables: dict[str, tuple[Mapping[str, Any], Any]] = {
        "the top": (architecture.top, DiffusionGemmaConfig),
        "text": (architecture.text, DiffusionGemmaTextConfig),
        "vision": (architecture.vision, Gemma4VisionConfig),
    }
    for table, (values, kind) in tables.items():
        # transformers keeps a field that it doesn't know without a word.
        unknown = next((name for name in values if name not in _FOLDED and not hasattr(kind, name)), None)
        if unknown is not None:
            raise SettingsError(
                f"unknown field '{unknown}' in {table} of the architecture {architecture.name}",
                hint="Fields are those of transformers' DiffusionGemma configs.",
            )
    try:
        config = DiffusionGemmaConfig(
            text_config=DiffusionGemmaTextConfig(**architecture.text),
            vision_config=Gemma4VisionConfig(**architecture.vision),
            **architecture.top,
        )
        if found := network.flaw(config):
            raise ValueError(found)
        with torch.device("meta"), _default_dtype(dtype):
            return DiffusionGemmaForBlockDiffusion(config)
    except Exception as error:  # config classes and modules raise what they like
        raise SettingsError(
            f"the architecture {architecture.name} describes no model: {network.one_line(error)}",
            hint="Compare it with configs/arch/26b-a4b.toml.",
        ) from error


_FOLDED = ("global_head_dim", "num_global_key_value_heads")
"""Arguments of the text config that become part of its `per_layer_config`."""


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """As transformers' own loader does, so that buffers come out in the same dtypes."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _make_parameters(model: Any, device: torch.device) -> None:
    """Give each parameter memory, tied ones the same; half of a tied model would not fit twice."""
    import torch

    made: dict[int, Any] = {}
    for module in model.modules():
        for name, empty in list(module._parameters.items()):
            if empty is None:
                continue
            if id(empty) not in made:
                made[id(empty)] = torch.nn.Parameter(
                    torch.empty_like(empty, device=device), requires_grad=False
                )
            module._parameters[name] = made[id(empty)]


def _make_buffers(model: Any, device: torch.device) -> None:
    """Give each buffer memory and the value that its module's own initialisation has for it."""
    _make_own_buffers(model, model, device)
    for name, buffer in model.named_buffers():
        assert not buffer.isnan().any(), f"transformers gave {name} no value"


def _make_own_buffers(module: Any, owner: Any, device: torch.device) -> None:
    """Those of a module and of its children; `owner` is the nearest model around, which knows their values."""
    import torch

    owner = module if hasattr(module, "_init_weights") else owner
    own = module._buffers
    for name, empty in list(own.items()):
        if empty is not None:
            own[name] = torch.full_like(empty, math.nan, device=device)
    if "layer_scalar" in own:
        own["layer_scalar"].fill_(1.0)
    if own:
        owner._init_weights(module)
    for child in module.children():
        _make_own_buffers(child, owner, device)


def _fill(model: Any, generator: torch.Generator) -> None:
    """Normal weights of unit gain, and around 1 for norms and scales."""
    gains: dict[str, Callable[[Any], float]] = {
        "decoder.norm.weight": lambda _: _LOGIT_SPREAD,
        # Attention does not divide by the root of the head size.
        "q_norm.weight": lambda weight: _QUERY_SPREAD**0.5 * weight.shape[0] ** -0.25,
        "k_norm.weight": lambda weight: _QUERY_SPREAD**0.5 * weight.shape[0] ** -0.25,
        # The router divides by the root of the hidden size already.
        "router.proj.weight": lambda weight: weight.shape[-1] ** 0.5,
    }
    decoder = model.model.decoder.named_parameters(prefix="decoder")
    seen: set[int] = set()
    # The decoder's names first: tied weights are filled once, under them.
    for name, weight in chain(decoder, model.named_parameters()):
        if id(weight) in seen:
            continue
        seen.add(id(weight))
        find = next((gain for end, gain in gains.items() if name.endswith(end)), None)
        gain = 1.0 if find is None else find(weight)
        if weight.ndim > 1:
            weight.normal_(0.0, gain * weight.shape[-1] ** -0.5, generator=generator)
        else:
            weight.normal_(gain, 0.1 * gain, generator=generator)
