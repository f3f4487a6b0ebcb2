"""What doctor looks at: each check asks one question of this machine and answers it with a line.

A check never raises for what it finds: a broken installation is a finding.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

from dgen._version import __version__
from dgen.cli.check import Check, answered, size
from dgen.cli.checkup_kernels import fused_denoiser, sampler_kernels
from dgen.cli.checkup_model import ModelCheckup
from dgen.errors import UsageError
from dgen.settings import Settings

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


def checks(
    run: Settings, doing: Callable[[str], None], *, memory: int | None = None, debug: bool = False
) -> Iterator[Check]:
    """All checks, for the model, device, dtype, denoiser, slots and context of `run`.

    Args:
        doing: told what takes its time.
        memory: free bytes to judge the model against, if not the device's.
        debug: let an unexpected failure through, for its traceback.

    Raises:
        UsageError: `run` asks for something that no machine has.
    """
    from dgen.checkpoint import target

    target.check_names(run.device, run.dtype)
    yield from versions()
    doing("importing torch and transformers")
    device = answered("device", lambda: _device(run.device), debug=debug)
    yield device
    there = device.status != "fail"
    model = ModelCheckup(run, doing, memory=memory)
    questions = {
        "kernels": (there, lambda: sampler_kernels(run, doing)),
        "fused": (there, lambda: fused_denoiser(run, doing)),
        "cache": (True, lambda: _cache(run.offline)),
        "model": (there, model.weights),
        "denoiser": (there, model.denoiser),
        "context": (there, model.context),
    }
    for name, (askable, question) in questions.items():
        if askable:
            yield answered(name, question, debug=debug)
        else:
            yield Check(name, "skip", "not tested: no device")
    yield terminal()


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

    try:
        device = target.pick_device(name)
    except UsageError as error:  # a name of a device that this machine has not
        return Check("device", "fail", error.message, error.hint)
    found = environment(device)
    free = memory.free_memory(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        detail = (
            f"{device}: {found['gpu']} (compute {properties.major}.{properties.minor}, driver "
            f"{found['driver'] or 'unknown'}, CUDA {found['cuda']}), "
            f"{size(free)} of {size(properties.total_memory)} free"
        )
        return Check("device", "ok", detail)
    why = "this torch sees no CUDA card" if torch.version.cuda else "this torch is built without CUDA"
    detail = f"cpu: {found['cpu']}, {found['cpus']} CPUs, {size(free)} free ({why})"
    return Check("device", "ok", detail)


def _cache(offline_asked: bool) -> Check:
    from dgen.checkpoint.cache import hub_cache

    cache = hub_cache()
    network = "online"
    if offline_asked or cache.offline:
        network = "offline (" + ("HF_HUB_OFFLINE" if cache.offline else "--offline") + ")"
    detail = f"{cache.folder}, {size(cache.free)} free on its disk, {network}"
    if not cache.writable:
        return Check(
            "cache", "warn", f"{detail}; not writable", "Set HF_HOME to a folder that you may write to."
        )
    return Check("cache", "ok", detail)


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
