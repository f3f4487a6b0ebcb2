"""`dgen config`: each setting, its value and where that came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dgen.cli import options
from dgen.cli.setting_flags import layers_of, takes_settings
from dgen.cli.sink import Sink, standard_streams, wants_color
from dgen.cli.values import source_of, written
from dgen.cli.wrapping import columns_of, hanging
from dgen.errors import CheckpointError
from dgen.layers import preset_names
from dgen.settings import SETTINGS, Layer, Resolved, Settings, resolve


@takes_settings()
def config(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    debug: options.Debug = False,
    **flags: Any,
) -> None:
    """Show each setting, its value and where it came from.

    \b
    dgen config
    dgen config --config careful --set steps=24
    DGEN_T_MAX=0.6 dgen config --json | jq .settings.t_max

    Takes the flags of generate that set something. Nothing is loaded or fetched:
    a hub model's defaults are known once its files are in the cache.
    """
    del debug  # read by main, which handles failures
    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr, color=wants_color(stderr))
    sink.check()
    layers = layers_of(flags)
    try:
        own = _checkpoint_layer(resolve(layers, partial=True).settings)
    except CheckpointError as error:
        own = None
        sink.warn(f"the checkpoint's own settings are left out: {error.message}")
    resolved = resolve([own, *layers] if own else layers, partial=own is None)
    sink.document(_as_json(resolved, own is not None) if as_json else "\n".join(_table(resolved)))
    sink.close()


def _checkpoint_layer(run: Settings) -> Layer:
    """What the checkpoint's generation_config.json sets, from its folder or from the hub's local cache."""
    from dgen.checkpoint import configuration, defaults, source

    place = source.locate(run.model, revision=run.revision, offline=True)
    generation = configuration.read_generation(place.path, name=run.model)
    return Layer("checkpoint", defaults.settings_of(generation, name=run.model))


def _as_json(resolved: Resolved, checkpoint_read: bool) -> str:
    settings = {
        name: {
            "value": getattr(resolved.settings, name),
            "source": source,
            "scope": SETTINGS[name].scope,
            "help": SETTINGS[name].help,
        }
        for name, source in resolved.sources.items()
    }
    document = {"settings": settings, "checkpoint_read": checkpoint_read, "presets": preset_names()}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _table(resolved: Resolved) -> Iterator[str]:
    rows = [
        (name, written(name, getattr(resolved.settings, name)), source_of(name, resolved))
        for name in resolved.sources
    ]
    columns = columns_of(sys.stdout)
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    # One value may be a long path, and should not push every source off the screen.
    widths[1] = min(widths[1], 32)
    for name, value, source in rows:
        yield from hanging(source, f"{name:{widths[0]}}  {value:{widths[1]}}  ", columns)
    yield ""
    yield from hanging(", ".join(preset_names()), "presets for --config: ", columns)
