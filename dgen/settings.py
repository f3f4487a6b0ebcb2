"""What a run and one of its requests may set, and where each value came from.

Layers, later ones winning: built-in defaults < the checkpoint's generation_config.json < a `--config` preset <
`DGEN_*` < flags. Pure data and parsing on the standard library: reads no file and no environment (`layers.py` does,
when asked), and knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dgen.errors import SettingsError

ENV_PREFIX = "DGEN_"
FLAG, ENVIRONMENT = "flag", "environment"
"""Sources of layers whose values each name their own flag or variable."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is written, checked and explained; `parse` takes text or a typed value."""

    parse: Callable[[Any], Any]
    help: str
    scope: str = "request"


def _number(
    kind: type, low: float, high: float = math.inf, *, low_open: bool = False
) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"must be {_kind_name(kind)}")
        if isinstance(value, str):
            try:
                value = kind(value.strip())
            except (ValueError, OverflowError):
                raise ValueError(f"must be {_kind_name(kind)}") from None
        if kind is int and isinstance(value, float):
            if not value.is_integer():
                raise ValueError("must be a whole number")
            value = int(value)
        if not isinstance(value, (int, float)):
            raise ValueError(f"must be {_kind_name(kind)}")
        if (
            (isinstance(value, float) and not math.isfinite(value))
            or value < low
            or value > high
            or (low_open and value == low)
        ):
            opening = ">" if low_open else ">="
            limit = f"{opening} {low:g}" + (f" and <= {high}" if high <= 1024 or value > high else "")
            raise ValueError(f"must be {_kind_name(kind)} {limit}")
        return kind(value)

    return parse


def _kind_name(kind: type) -> str:
    return "a whole number" if kind is int else "a number"


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError("must be true or false")


def _choice(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return str(value)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a non-empty text")
    return value


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def parse_optional(value: Any) -> Any:
        return None if value is None or value in ("none", "auto", "off") else parse(value)

    return parse_optional


def _stops(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(item, str) and item for item in items):
        raise ValueError("must be one or more non-empty texts")
    return tuple(items)


def _ids(value: Any) -> tuple[int, ...]:
    items = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        raise ValueError("must be token ids, for example 5,9")
    try:
        return tuple(dict.fromkeys(_number(int, 0)(item) for item in items))
    except ValueError:
        raise ValueError("must be token ids, for example 5,9") from None


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its built-in default; temperatures and bounds as in transformers' generation config."""

    max_tokens: int = 256
    steps: int = 48
    entropy_bound: float = 0.1
    t_min: float = 0.4
    t_max: float = 0.8
    stability: int = 1
    confidence: float = 0.005
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    think: bool = False
    logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    logprobs_of: str = "tempered"
    model: str = "builtin"
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    kernel: str = "auto"
    denoiser: str = "auto"
    graphs: bool = True
    slots: int | None = None
    max_context: int | None = None


MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1
MAX_NUMBER = 10**9  # far beyond sense, well within fp32
MAX_TOP_LOGPROBS = 1024

SETTINGS: Mapping[str, Setting] = {
    "max_tokens": Setting(_number(int, 1, MAX_COUNT), "Stop after this many tokens."),
    "steps": Setting(_number(int, 1, MAX_COUNT), "Most denoising steps a canvas."),
    "entropy_bound": Setting(
        _number(float, 0, MAX_NUMBER), "Accept positions by rising entropy up to this sum, in nats."
    ),
    "t_min": Setting(_number(float, 0, MAX_NUMBER), "Temperature that the schedule runs towards."),
    "t_max": Setting(_number(float, 0, MAX_NUMBER), "Temperature of the first step."),
    "stability": Setting(_number(int, 0, 64), "Earlier argmax canvases that must equal the current one."),
    "confidence": Setting(
        _number(float, 0, MAX_NUMBER), "A canvas is confident below this mean entropy, in nats."
    ),
    "top_k": Setting(_number(int, 0, MAX_COUNT), "Sample from the k likeliest tokens only; 0 is off."),
    "top_p": Setting(
        _number(float, 0, 1, low_open=True), "Sample from the smallest set of this mass; 1 is off."
    ),
    "greedy": Setting(_flag, "Temperature 0 at every step: draw the likeliest token."),
    "seed": Setting(
        _optional(_number(int, 0, MAX_SEED)), "Seed of all noise; drawn and reported when not given."
    ),
    "stop": Setting(_stops, "End the answer before this text (repeatable)."),
    "think": Setting(_flag, "Let the model think first; its thoughts go to stderr."),
    "logprobs": Setting(
        _optional(_number(int, 0, MAX_TOP_LOGPROBS)), "Report log-probabilities, with the K likeliest tokens."
    ),
    "logprob_ids": Setting(_ids, "Report the log-probabilities of these token ids too, for example 5,9."),
    "logprobs_of": Setting(
        _choice("tempered", "raw"), "Distribution of the log-probabilities: tempered or raw (T = 1)."
    ),
    "model": Setting(_text, "builtin, a folder, or a hub name.", "run"),
    "revision": Setting(_optional(_text), "Branch, tag or commit of a hub model.", "run"),
    "device": Setting(_text, "auto, cpu, cuda or cuda:N.", "run"),
    "dtype": Setting(_text, "auto, float32 or bfloat16.", "run"),
    "offline": Setting(_flag, "Never use the network; hub models must be cached.", "run"),
    "kernel": Setting(_choice("auto", "triton", "torch"), "Sampler implementation.", "run"),
    "denoiser": Setting(
        _choice("auto", "reference", "fused"),
        "transformers' own forward (reference) or ours for CUDA (fused); auto takes fused where it can.",
        "run",
    ),
    "graphs": Setting(_flag, "Capture steps of the fused denoiser as CUDA graphs.", "run"),
    "slots": Setting(
        _optional(_number(int, 1, 1024)), "Requests that run at a time; auto decides by the memory.", "run"
    ),
    "max_context": Setting(
        _optional(_number(int, 1, MAX_COUNT)),
        "Most positions of prompt and answer; auto takes what the model has and memory holds.",
        "run",
    ),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Raw values from one source; `source` is what `Resolved.sources` will say.

    An empty source goes without saying: messages don't name it.
    """

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and, for each name, the source of its value."""

    settings: Settings
    sources: Mapping[str, str] = field(default_factory=dict)

    def request_settings(self) -> dict[str, Any]:
        """The settings that shape a request's tokens, by name, ready for JSON."""
        names = [name for name, setting in SETTINGS.items() if setting.scope == "request"]
        values = {name: getattr(self.settings, name) for name in names}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def resolve(layers: Iterable[Layer], *, partial: bool = False) -> Resolved:
    """Merge layers, later ones winning, over the built-in defaults.

    Args:
        partial: more layers will lie beneath (a checkpoint that isn't read yet), so a default contradicts nothing.

    Raises:
        SettingsError: unknown name, wrong type, out of range, or values that contradict each other; the message
            names the value and its source.
    """
    values: dict[str, Any] = asdict(Settings())
    sources = dict.fromkeys(values, "default")
    depth = dict.fromkeys(values, 0)
    for level, layer in enumerate(layers, start=1):
        for name, raw in layer.values.items():
            source = _source_of(name, layer.source)
            values[name] = _parse(name, raw, source)
            sources[name], depth[name] = source, level
    _check_together(values, sources, depth, partial=partial)
    return Resolved(Settings(**values), sources)


def _parse(name: str, raw: Any, source: str) -> Any:
    if name not in SETTINGS:
        raise SettingsError(f"unknown setting '{name}'{_of(source)}", hint=nearest(name))
    try:
        return SETTINGS[name].parse(raw)
    except ValueError as error:
        shown = ", ".join(map(repr, raw)) if isinstance(raw, (list, tuple)) else repr(raw)
        if isinstance(raw, bool):
            shown = shown.lower()  # as JSON and TOML write it
        raise SettingsError(f"{name} {error}, not {shown}{_of(source)}", hint=SETTINGS[name].help) from None


def nearest(name: str) -> str:
    """Advice for a name that is no setting."""
    import difflib

    close = difflib.get_close_matches(name, SETTINGS, n=1)
    return f"Did you mean '{close[0]}'?" if close else "See dgen generate --help for the names."


def _source_of(name: str, source: str) -> str:
    if source == FLAG:
        return f"--{name.replace('_', '-')}"
    return f"{ENV_PREFIX}{name.upper()}" if source == ENVIRONMENT else source


def _of(source: str) -> str:
    return f" ({source})" if source else ""


def _check_together(
    values: dict[str, Any], sources: dict[str, str], depth: dict[str, int], *, partial: bool
) -> None:
    if values["greedy"]:
        for name in ("t_min", "t_max"):
            # A temperature from the same or a later layer is a contradiction; an earlier one is just overridden.
            if depth[name] >= depth["greedy"] and values[name] != 0:
                raise SettingsError(
                    f"greedy{_of(sources['greedy'])} is temperature 0, "
                    f"but {name} is {values[name]:g}{_of(sources[name])}",
                    hint=f"Leave out one of greedy and {name}, or add --no-greedy.",
                )
            values[name], sources[name] = 0.0, f"greedy{_of(sources['greedy'])}"
    undecided = partial and 0 in (depth["t_min"], depth["t_max"])
    if values["t_min"] > values["t_max"] and not undecided:
        raise SettingsError(
            f"t_min {values['t_min']:g}{_of(sources['t_min'])} is above "
            f"t_max {values['t_max']:g}{_of(sources['t_max'])}",
            hint="The temperature falls from t_max to t_min: set both, or raise t_max.",
        )
    for name in ("logprob_ids", "logprobs_of"):
        if values["logprobs"] is None and depth[name] > 0 and values[name]:
            values["logprobs"], sources["logprobs"] = 0, f"{name}{_of(sources[name])}"
