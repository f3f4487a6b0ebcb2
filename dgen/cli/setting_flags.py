"""The flags of `dgen generate` that set settings, for commands that take the same ones.

Read from generate's own signature, so that a flag added there is a flag of theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from dgen.cli import options
from dgen.cli.generate import generate
from dgen.cli.inputs import from_argv
from dgen.settings import SETTINGS, Layer

_LAYERS = ("config", "assignments", "no_config")


def takes_settings(
    *, scope: str | None = None, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command with `**flags` the setting flags of generate, after its own.

    Args:
        scope: only those of this scope.
        without: names of settings that mean nothing to the command.
    """

    def taken(name: str) -> bool:
        setting = SETTINGS.get(name)
        wanted = setting is not None and scope in (None, setting.scope) and name not in without
        return name in _LAYERS or wanted

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = inspect.signature(generate, eval_str=True).parameters.values()
        kept += [p for p in shared if taken(p.name)]
        command.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        # Older parsers of signatures read the hints of the function itself.
        command.__annotations__ = {p.name: p.annotation for p in kept}
        return command

    return decorate


def layers_of(flags: dict[str, Any]) -> list[Layer]:
    """The layers that such flags give, weakest first; errors as in `options.settings_layers`."""
    flags = dict(flags)
    config, assignments, no_config = (flags.pop(name) for name in _LAYERS)
    if flags.get("stop"):
        flags["stop"] = [from_argv(text, "--stop") for text in flags["stop"]]
    # First, so that a temperature flag beside --greedy is seen as a contradiction.
    flags = {"greedy": flags.pop("greedy", None), **flags}
    return options.settings_layers(config, no_config, assignments, **flags)
