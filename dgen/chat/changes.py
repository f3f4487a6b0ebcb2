"""Which settings a conversation may change: those of a turn, and not those of the model that it is held with."""

from __future__ import annotations

from dgen.errors import SettingsError
from dgen.settings import SETTINGS, Layer


def check_changeable(layer: Layer) -> None:
    """Raises SettingsError for a setting of the whole run; names that are none are left to `resolve`."""
    for name in layer.values:
        if name in SETTINGS and SETTINGS[name].scope == "run":
            raise SettingsError(
                f"{name} belongs to the model that is loaded",
                hint=f"Start another chat with --set {name}=...",
            )
