"""config.json and its neighbours: what can be refused by reading JSON, before transformers is imported."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from dgen.checkpoint.source import RELEASED
from dgen.errors import CheckpointError

MODEL_TYPE = "diffusion_gemma"
OLDEST_TRANSFORMERS = "5.17"

_UNSUPPORTED = ("transformers_weights", "fusion_config")


def read_json(file: Path, *, name: str) -> dict[str, Any]:
    """The JSON object in `file`; CheckpointError when it is unreadable or no object."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = "it is no JSON"
        if isinstance(error, OSError):
            why = error.strerror or str(error)
        elif isinstance(error, UnicodeDecodeError):
            why = "it is not UTF-8"
        elif isinstance(error, json.JSONDecodeError):
            why += f" (line {error.lineno})"
        raise CheckpointError(
            f"{file.name} of {name} is unreadable: {why}", hint="Fetch or copy the checkpoint again."
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{file.name} of {name} holds no JSON object", hint="Fetch or copy the checkpoint again."
        )
    return data


def read_config(folder: Path, *, name: str) -> dict[str, Any]:
    """config.json of a DiffusionGemma checkpoint that dgen can run.

    `auto_map` is ignored: code that a checkpoint brings is never run.

    Raises:
        CheckpointError: no config.json, another model type, quantized weights, or an adapter.
    """
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            f"{name} is or holds an adapter", hint="Merge it into its base model and save that."
        )
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{name} holds no config.json", hint="Give the folder that save_pretrained wrote."
        )
    config = read_json(folder / "config.json", name=name)
    kind = config.get("model_type")
    if kind != MODEL_TYPE:
        raise CheckpointError(
            f"{name} is a {kind or 'model without model_type'}, and dgen runs {MODEL_TYPE} alone",
            hint=f"Use a DiffusionGemma checkpoint, for example {RELEASED}.",
        )
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise CheckpointError(
            f"config.json of {name} has no text_config", hint="Fetch or copy the checkpoint again."
        )
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise CheckpointError(
            f"{name} is quantized with {method or 'an unnamed method'}, which dgen does not support",
            hint="Use the checkpoint in bfloat16 or float32.",
        )
    for key in _UNSUPPORTED:
        if config.get(key) is not None:
            raise CheckpointError(
                f"config.json of {name} sets {key}, which dgen does not support",
                hint=f"Remove {key} from it.",
            )
    return config


def read_generation(folder: Path, *, name: str) -> dict[str, Any]:
    """generation_config.json, or nothing where there is none."""
    file = folder / "generation_config.json"
    return read_json(file, name=name) if file.is_file() else {}


def require_transformers(*, name: str) -> None:
    """Raise CheckpointError when the installed transformers can't know the model."""
    installed = installed_transformers()
    if _numbers(installed) < _numbers(OLDEST_TRANSFORMERS):
        raise CheckpointError(
            f"transformers {installed} is too old for {name}: {OLDEST_TRANSFORMERS} or newer is needed",
            hint="Run: pip install --upgrade transformers",
        )


def upgrade_advice(config: Mapping[str, Any]) -> str:
    """A hint, where the checkpoint was written by a newer transformers than the installed one; else empty."""
    written, installed = str(config.get("transformers_version") or "0"), installed_transformers()
    if _numbers(written) <= _numbers(installed):
        return ""
    return (
        f"It was written by transformers {written}, and {installed} is installed: "
        "try pip install --upgrade transformers"
    )


def installed_transformers() -> str:
    """The installed version, without importing it."""
    return metadata.version("transformers")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
