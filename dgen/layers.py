"""Where layers of settings come from: preset files, the environment, and `--set key=value`.

Turns each into a `settings.Layer` of raw values; what they mean, and whether they are right, `settings.resolve` says.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dgen.errors import SettingsError
from dgen.settings import ENV_PREFIX, ENVIRONMENT, SETTINGS, Layer, nearest


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """The settings among `environ`: DGEN_MAX_TOKENS=64 sets max_tokens. DGEN_CONFIG names a preset, not a setting.

    Raises:
        SettingsError: a DGEN_ variable that names no setting.
    """
    values = {}
    for key, value in environ.items():
        # An empty variable is an unset one.
        if not key.startswith(ENV_PREFIX) or key == ENV_PREFIX + "CONFIG" or not value:
            continue
        name = key.removeprefix(ENV_PREFIX).lower()
        if name not in SETTINGS:
            raise SettingsError(f"unknown setting in the environment: {key}", hint=nearest(name))
        values[name] = value
    return Layer(ENVIRONMENT, values)


def assignments_layer(assignments: Sequence[str]) -> Layer:
    """The values of repeated `--set key=value` flags."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(
                f"--set takes key=value, not '{assignment}'", hint="For example: --set steps=24"
            )
        values[name.strip().replace("-", "_")] = value
    return Layer("--set", values)


def preset_names() -> list[str]:
    """The presets that ship with dgen."""
    return sorted(path.stem for path in configs_folder().glob("*.toml"))


def preset(name_or_path: str) -> Layer:
    """Read a preset: the name of a shipped one (`careful`), or the path of a TOML file of settings.

    Raises:
        SettingsError: no such preset, or the file is no flat TOML table.
    """
    values = read_toml(name_or_path, configs_folder(), what="settings")
    if values is None:
        raise SettingsError(
            f"no preset or file '{name_or_path}'",
            hint=f"Presets: {', '.join(preset_names())}; or a path ending in .toml.",
        )
    return Layer(f"config {name_or_path}", values)


def read_toml(name_or_path: str, folder: Path, *, what: str) -> dict[str, Any] | None:
    """A TOML file by its path, or by its name in `folder`; None where there is none.

    Raises:
        SettingsError: it can't be read as TOML; `what` says what was looked for in it.
    """
    path = Path(os.path.expanduser(name_or_path))
    if path.suffix != ".toml" and "/" not in name_or_path:
        path = folder / f"{name_or_path}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        why = str(error)
    raise SettingsError(f"can't read {what} from '{name_or_path}': {why}", hint="It must be a TOML file.")


def configs_folder() -> Path:
    """Where the presets lie: in a wheel inside the package, in a checkout in the configs/ folder beside it."""
    packaged = Path(__file__).parent / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "configs"
