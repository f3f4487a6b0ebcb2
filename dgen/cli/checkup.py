"""What doctor looks at: each check asks one question of this machine and answers it with a line.

A check never raises for what it finds: a broken installation is a finding.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from dgen._version import __version__
from dgen.errors import DgenError
from dgen.settings import Settings

Status = Literal["ok", "warn", "skip", "fail"]

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "safetensors",
    "huggingface_hub",
    "tokenizers",
    "typer",
    "rich",
)


@dataclass(frozen=True, slots=True)
class Check:
    """A question's name, its answer in a line, and the next thing to try where there is one."""

    name: str
    status: Status
    detail: str
    hint: str = ""


def checks(run: Settings, doing: Callable[[str], None], *, debug: bool = False) -> Iterator[Check]:
    """All checks, for the model, device and dtype of `run`; `doing` is told what takes its time.

    Args:
        debug: let an unexpected failure through, for its traceback.
    """
    yield from versions()
    doing("importing torch and transformers")
    device = _answered("device", lambda: _device(run.device), debug)
    yield device
    there = device.status != "fail"
    questions = {
        "kernels": (there, lambda: _kernels(run.device, doing)),
        "cache": (True, lambda: _cache(run.offline)),
        "model": (there, lambda: _model(run, doing)),
    }
    for name, (askable, question) in questions.items():
        yield _answered(name, question, debug) if askable else Check(name, "skip", "not tested: no device")


def _answered(name: str, question: Callable[[], Check], debug: bool) -> Check:
    try:
        return question()
    except DgenError as error:
        return Check(name, "fail", error.message, error.hint)
    except Exception as error:  # a broken driver or package raises what it likes
        if debug:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Check(name, "fail", f"{type(error).__name__}: {reason}", "dgen doctor --debug shows where.")


def versions() -> Iterator[Check]:
    """Python and each package, against what dgen asks for; imports none of them."""
    asked = _asked_versions()
    yield Check("dgen", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    for package in _PACKAGES:
        least = asked.get(package)
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "triton":
                yield Check(package, "warn", "not installed: no CUDA kernels", "pip install 'dgen[triton]'")
            else:
                yield Check(package, "fail", "not installed", f"pip install {package}")
            continue
        if least and _numbers(found) < _numbers(least):
            yield Check(package, "fail", f"{found}, older than {least}", f"pip install '{package}>={least}'")
        else:
            yield Check(package, "ok", found + (f" (needs {least})" if least else ""))


def _asked_versions() -> dict[str, str]:
    """Package -> oldest version that dgen's own metadata allows; empty where dgen runs without being installed."""
    try:
        lines = metadata.requires("dgen") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w-]+)\s*>=\s*([\d.]+)", line) for line in lines)
    return {match[1].replace("-", "_"): match[2] for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _device(name: str) -> Check:
    import torch

    from dgen.bench.environment import environment
    from dgen.checkpoint import memory, target

    target.check_names(name, "auto")
    device = target.pick_device(name)
    found = environment(device)
    free = memory.free_memory(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        detail = (
            f"{device}: {found['gpu']} (compute {properties.major}.{properties.minor}, driver "
            f"{found['driver'] or 'unknown'}, CUDA {found['cuda']}), {_gb(free)} of {_gb(properties.total_memory)} free"
        )
        return Check("device", "ok", detail)
    why = "this torch sees no CUDA card" if torch.version.cuda else "this torch is built without CUDA"
    detail = f"cpu: {found['cpu']}, {found['cpus']} CPUs, {_gb(free)} free ({why})"
    return Check("device", "ok", detail)


def _kernels(name: str, doing: Callable[[str], None]) -> Check:
    from dgen.checkpoint import target
    from dgen.sampler import kernels_for
    from dgen.sampler.self_test import self_test

    device = target.pick_device(name)
    if kernels_for("auto", device).name == "torch":
        why = "the device is a CPU" if device.type == "cpu" else "triton is not installed"
        return Check("kernels", "skip", f"not tested: {why}, so the sampler runs in torch")
    doing("compiling and testing the sampler's kernels")
    wrong = self_test(device)
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return Check(
            "kernels",
            "fail",
            f"{wrong[0]}{more}",
            "Use --set kernel=torch, and report GPU, driver and versions.",
        )
    return Check("kernels", "ok", f"the sampler's Triton kernels agree with torch on {device}")


def _cache(offline_asked: bool) -> Check:
    from dgen.checkpoint.cache import hub_cache

    cache = hub_cache()
    network = "online"
    if offline_asked or cache.offline:
        network = "offline (" + ("HF_HUB_OFFLINE" if cache.offline else "--offline") + ")"
    detail = f"{cache.folder}, {_gb(cache.free)} free on its disk, {network}"
    if not cache.writable:
        return Check(
            "cache", "warn", f"{detail}; not writable", "Set HF_HOME to a folder that you may write to."
        )
    return Check("cache", "ok", detail)


def _model(run: Settings, doing: Callable[[str], None]) -> Check:
    doing(f"reading the configuration of {run.model}")
    from dgen.checkpoint.cache import hub_cache
    from dgen.checkpoint.fit import fit

    found = fit(run.model, revision=run.revision, device=run.device, dtype=run.dtype, offline=run.offline)
    sizes = ", ".join(f"{_gb(need)} as {dtype}" for dtype, need in found.need.items())
    chosen = found.need[found.dtype]
    detail = f"the weights of {found.name} take {sizes}; {_gb(found.free)} free on {found.device}: "
    if chosen > found.free:
        other = next(iter(found.fitting), "")
        hint = f"It fits with --dtype {other}." if other else "Free some memory, or use a bigger machine."
        return Check("model", "fail", f"{detail}does not fit as {found.dtype}", hint)
    detail += f"fits as {found.dtype}"
    if found.here:
        return Check("model", "ok", detail)
    space = hub_cache().free
    stored = min(found.need.values())
    if run.offline or hub_cache().offline:
        return Check(
            "model", "fail", f"{detail}, but its weights are not in the cache", "Fetch it once online."
        )
    if stored > space:
        return Check(
            "model", "fail", f"{detail}, but the cache's disk has {_gb(space)}", "Free some disk space."
        )
    return Check("model", "warn", f"{detail}; the first run fetches its weights")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def terminal() -> Check:
    """What the live canvas would meet on stderr."""
    from dgen.cli.sink import is_terminal, wants_color

    if not is_terminal(sys.stderr):
        return Check("terminal", "ok", "stderr is no terminal: no live canvas, plain lines")
    size = os.get_terminal_size(sys.stderr.fileno())
    if os.environ.get("TERM", "dumb") == "dumb":
        return Check("terminal", "ok", "TERM is dumb or unset: no live canvas")
    colors = "colours" if wants_color(sys.stderr) else "no colours"
    return Check("terminal", "ok", f"{os.environ['TERM']}, {size.columns}x{size.lines}, {colors}")
