"""Sizes of a model without its weights: `configs/arch/*.toml`, or a file of the same form.

Plain data and the standard library alone; `random_weights` builds the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgen.errors import SettingsError
from dgen.layers import configs_folder, read_toml

_TABLES = ("text", "vision")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Fields of transformers' DiffusionGemma configs: `top` of the model, `text` and `vision` of its parts.

    `name` is what the user asked for.
    """

    name: str
    top: Mapping[str, Any]
    text: Mapping[str, Any]
    vision: Mapping[str, Any]


def architecture_names() -> list[str]:
    """The architectures that ship with dgen."""
    return sorted(path.stem for path in (configs_folder() / "arch").glob("*.toml"))


def read_architecture(name_or_path: str) -> Architecture:
    """Read a shipped architecture by name (`26b-a4b`), or a TOML file by path.

    Raises:
        SettingsError: no such architecture, or the file has not the form of one.
    """
    values = read_toml(name_or_path, configs_folder() / "arch", what="an architecture")
    if values is None:
        raise SettingsError(
            f"no architecture or file '{name_or_path}' (--arch)",
            hint=f"Architectures: {', '.join(architecture_names())}; or a path ending in .toml.",
        )
    tables = {table: values.pop(table, {}) for table in _TABLES}
    wrong = next((table for table in _TABLES if not isinstance(tables[table], dict)), None)
    if not tables["text"] or wrong is not None:
        raise SettingsError(
            f"'{name_or_path}' is no architecture: {wrong or 'text'} is no table of config fields",
            hint="See configs/arch/26b-a4b.toml for the form.",
        )
    return Architecture(name_or_path, top=values, text=tables["text"], vision=tables["vision"])
