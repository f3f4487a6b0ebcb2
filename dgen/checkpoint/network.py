"""config.json -> an empty model to check files against -> the loaded one, by transformers' own loader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgen.checkpoint.configuration import installed_transformers
from dgen.checkpoint.source import Progress
from dgen.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_REFETCH = "Fetch or copy the checkpoint again."
_BUG = "Please report this as a bug."


def build_config(folder: Path, *, name: str, advice: str = "") -> Any:
    """The checked DiffusionGemmaConfig of `folder`; `advice` is a hint in place of the usual one.

    Raises:
        CheckpointError: transformers lacks the model, or the values describe none.
    """
    try:
        from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion  # noqa: F401
    except ImportError as error:
        raise CheckpointError(
            f"transformers {installed_transformers()} can't run {name}: {one_line(error)}",
            hint="Run: pip install --upgrade transformers torch",
        ) from error
    try:
        config: Any = DiffusionGemmaConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # config classes check themselves and raise what they like
        raise _no_model(name, one_line(error), advice) from error
    if found := flaw(config):
        raise _no_model(name, found, advice)
    return config


def flaw(config: Any) -> str:
    """What keeps a DiffusionGemmaConfig that transformers accepts from being run; empty where nothing does."""
    text = config.text_config
    cap, window = text.final_logit_softcapping, text.sliding_window
    if not isinstance(cap, (int, float)) or not cap > 0:
        return f"final_logit_softcapping is {cap}"
    if not isinstance(config.canvas_length, int) or config.canvas_length < 1:
        return f"canvas_length is {config.canvas_length}"
    # transformers' cache keeps the last `window - 1` positions, and takes the last 0 for all of them.
    if window < 2 and "sliding_attention" in text.layer_types:
        return f"sliding_window is {window}, and 2 is the least"
    return ""


def build_skeleton(config: Any, *, name: str, advice: str = "") -> Any:
    """The model without memory (meta tensors): its keys, shapes and ties."""
    import torch
    from transformers import DiffusionGemmaForBlockDiffusion

    try:
        with torch.device("meta"):
            return DiffusionGemmaForBlockDiffusion(config)
    except Exception as error:  # any module may object to a size
        _let_signals_through(error)
        raise _no_model(name, one_line(error), advice) from error


def shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Key -> shape of each parameter and persistent buffer."""
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def ties(model: Any) -> list[tuple[str, ...]]:
    """Groups of names that are one and the same parameter."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, weight in model.named_parameters(remove_duplicate=False):
        groups[id(weight)].append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def count_entries(model: Any) -> int:
    """Numbers in all parameters and buffers, tied ones counted once."""
    return sum(tensor.numel() for tensor in chain(model.parameters(), model.buffers()))


def read(folder: Path, config: Any, *, dtype: str, tied: Sequence[Sequence[str]], name: str) -> Any:
    """The model on the CPU, in eval mode, without gradients; `tied` are the groups that must come out as one.

    Raises:
        CheckpointError: anything that the checks of the files could not foresee.
    """
    import torch
    from transformers import DiffusionGemmaForBlockDiffusion

    loader: Any = DiffusionGemmaForBlockDiffusion
    try:
        model, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            # An empty one: transformers refuses values in the file that dgen accepts.
            generation_config=loader.generation_config_class(),
        )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise CheckpointError(f"memory ran out while {name} was read", hint="Free some memory.") from error
    except Exception as error:  # files can change or fail between check and read
        _let_signals_through(error)
        raise CheckpointError(
            f"the weights of {name} can't be read: {one_line(error)}", hint=_REFETCH
        ) from error
    wrong = [f"{kind} {sorted(map(str, keys))[:3]}" for kind, keys in report.items() if keys]
    if wrong:
        raise CheckpointError(f"transformers did not load all of {name}: {'; '.join(wrong)}", hint=_BUG)
    _check_read(model, tied, name)
    return model.eval().requires_grad_(False)


def _check_read(model: Any, tied: Sequence[Sequence[str]], name: str) -> None:
    tensors = chain(model.named_parameters(), model.named_buffers())
    empty = [key for key, tensor in tensors if tensor.is_meta]
    if empty:
        raise CheckpointError(
            f"{len(empty)} tensors of {name} have no data after loading, first {empty[0]}", hint=_BUG
        )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for group in tied:
        apart = next((key for key in group if parameters[key] is not parameters[group[0]]), None)
        if apart is not None:
            raise CheckpointError(
                f"config.json of {name} ties {group[0]} and {apart}, and their values in its files differ",
                hint="Set tie_word_embeddings to false in config.json if they are meant to differ.",
            )


def move(model: Any, device: torch.device, progress: Progress | None) -> None:
    """Move a model tensor by tensor, so that at most one lies on both sides; tied ones stay tied."""
    total = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    done = 0
    for module in model.modules():
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.device == device:
                continue
            tensor.data = tensor.data.to(device)
            done += tensor.nbytes
            if progress is not None:
                progress("load", done, total)
    if progress is not None and done < total:
        progress("load", total, total)


def one_line(error: BaseException) -> str:
    """A foreign error on one line of at most 200 characters; its class where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def _let_signals_through(error: Exception) -> None:
    """Raise the signal that a library's own tidying up has covered with a complaint."""
    cause = error.__context__
    if cause is not None and not isinstance(cause, Exception):
        raise cause


def _no_model(name: str, reason: str, advice: str) -> CheckpointError:
    return CheckpointError(f"config.json of {name} describes no model: {reason}", hint=advice or _REFETCH)
