"""Options that several commands share, declared once; their help is that of the settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dgen.layers import assignments_layer, environment_layer, preset
from dgen.settings import FLAG, SETTINGS, Layer


# Numbers come as text: the settings parse them, so that a bad one is named the same way from every source.
def _option(name: str, *flags: str, group: str, **kwargs: Any) -> Any:
    flags = flags or (f"--{name.replace('_', '-')}",)
    return typer.Option(*flags, help=SETTINGS[name].help, rich_help_panel=group, show_default=False, **kwargs)


_SAMPLING, _LOGPROBS, _MODEL, _CONFIG = "Sampling", "Log-probabilities", "Model", "Configuration"

MaxTokens = Annotated[str | None, _option("max_tokens", group=_SAMPLING, metavar="INT")]
Steps = Annotated[str | None, _option("steps", group=_SAMPLING, metavar="INT")]
EntropyBound = Annotated[str | None, _option("entropy_bound", group=_SAMPLING, metavar="FLOAT")]
TMin = Annotated[str | None, _option("t_min", group=_SAMPLING, metavar="FLOAT")]
TMax = Annotated[str | None, _option("t_max", group=_SAMPLING, metavar="FLOAT")]
Stability = Annotated[str | None, _option("stability", group=_SAMPLING, metavar="INT")]
Confidence = Annotated[str | None, _option("confidence", group=_SAMPLING, metavar="FLOAT")]
TopK = Annotated[str | None, _option("top_k", group=_SAMPLING, metavar="INT")]
TopP = Annotated[str | None, _option("top_p", group=_SAMPLING, metavar="FLOAT")]
Greedy = Annotated[bool | None, _option("greedy", "--greedy/--no-greedy", group=_SAMPLING)]
Seed = Annotated[str | None, _option("seed", group=_SAMPLING, metavar="INT")]
Stop = Annotated[list[str] | None, _option("stop", group=_SAMPLING, metavar="TEXT")]
Think = Annotated[bool | None, _option("think", "--think/--no-think", group=_SAMPLING)]

Logprobs = Annotated[str | None, _option("logprobs", group=_LOGPROBS, metavar="K")]
LogprobIds = Annotated[str | None, _option("logprob_ids", group=_LOGPROBS, metavar="IDS")]
LogprobsOf = Annotated[str | None, _option("logprobs_of", group=_LOGPROBS, metavar="tempered|raw")]

Model = Annotated[str | None, _option("model", "--model", "-m", group=_MODEL, metavar="NAME|PATH")]
Revision = Annotated[str | None, _option("revision", group=_MODEL, metavar="NAME")]
Device = Annotated[str | None, _option("device", group=_MODEL, metavar="NAME")]
DType = Annotated[str | None, _option("dtype", group=_MODEL, metavar="NAME")]
Offline = Annotated[bool | None, _option("offline", "--offline/--online", group=_MODEL)]
Denoiser = Annotated[str | None, _option("denoiser", group=_MODEL, metavar="auto|reference|fused")]
Graphs = Annotated[bool | None, _option("graphs", "--graphs/--no-graphs", group=_MODEL)]
MaxContext = Annotated[str | None, _option("max_context", group=_MODEL, metavar="INT")]

_BATCH = "Many prompts"
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="A file of prompts, one JSON object a line; - is stdin.",
        metavar="FILE.jsonl",
        rich_help_panel=_BATCH,
    ),
]
BatchOutput = Annotated[
    str | None,
    typer.Option(
        "--output",
        help="Where a record a line goes; .gz compresses; - is stdout.",
        metavar="FILE.jsonl",
        rich_help_panel=_BATCH,
    ),
]
Slots = Annotated[str | None, _option("slots", group=_BATCH, metavar="N|auto")]
Ordered = Annotated[
    bool,
    typer.Option("--ordered", help="In the end, put records into the input's order.", rich_help_panel=_BATCH),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew instead of resuming.", rich_help_panel=_BATCH)
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard", help="Run every n-th line, from the i-th on.", metavar="I/N", rich_help_panel=_BATCH
    ),
]

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="A preset (careful, default, fast, greedy) or a TOML file of settings.",
        envvar="DGEN_CONFIG",
        metavar="NAME|FILE",
        show_envvar=True,
        rich_help_panel=_CONFIG,
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any setting as key=value (repeatable).",
        metavar="KEY=VALUE",
        rich_help_panel=_CONFIG,
        show_default=False,
    ),
]
NoConfig = Annotated[
    bool,
    typer.Option(
        "--no-config", help="Ignore --config, DGEN_CONFIG and all DGEN_* variables.", rich_help_panel=_CONFIG
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Settings with their sources, timings, counts.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]


def settings_layers(
    config: str | None, no_config: bool, assignments: list[str] | None, **flags: Any
) -> list[Layer]:
    """The layers of a command, weakest first: preset, environment, --set, flags (those given).

    Raises:
        SettingsError: a preset, variable or assignment that can't be read.
    """
    import os

    layers = []
    if not no_config:
        if config is not None:
            layers.append(preset(config))
        layers.append(environment_layer(os.environ))
    layers.append(assignments_layer(assignments or []))
    layers.append(Layer(FLAG, {name: value for name, value in flags.items() if value not in (None, [], ())}))
    return layers
