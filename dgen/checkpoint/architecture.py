"""Sizes of a model without its weights: `configs/arch/*.toml`, or a file of the same form.

Plain data and the standard library alone; `random_weights` builds the model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgen.errors import SettingsError
from dgen.layers import configs_folder

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
    path = Path(name_or_path).expanduser()
    if path.suffix != ".toml" and "/" not in name_or_path:
        path = configs_folder() / "arch" / f"{name_or_path}.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"no architecture or file '{name_or_path}' (--arch)",
            hint=f"Architectures: {', '.join(architecture_names())}; or a path ending in .toml.",
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"can't read an architecture from '{name_or_path}': {error}", hint="It must be a TOML file."
        ) from None
    tables = {table: values.pop(table, {}) for table in _TABLES}
    wrong = next((table for table in _TABLES if not isinstance(tables[table], dict)), None)
    if not tables["text"] or wrong is not None:
        raise SettingsError(
            f"'{name_or_path}' is no architecture: {wrong or 'text'} is no table of config fields",
            hint="See configs/arch/26b-a4b.toml for the form.",
        )
    return Architecture(name_or_path, top=values, text=tables["text"], vision=tables["vision"])
