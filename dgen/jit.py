"""Triton where it is installed, and a clear refusal where it is not.

The kernels of this room take `jit` and `tl` from here, so that the torch references stay importable on a
machine without Triton. Nothing is decided at import time beyond that: a kernel launch asks `require_triton`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from dgen.errors import SettingsError

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
except ImportError:
    triton = tl = None


def _leave(function: Any) -> Any:
    """Without Triton a kernel stays a plain function, which is never launched."""
    return function


jit: Any = _leave if triton is None else triton.jit


def jit_for_any(*names: str) -> Any:
    """`jit` of a kernel that is not compiled anew for special values (1, multiples of 16) of these integers."""
    return _leave if triton is None else triton.jit(do_not_specialize=list(names))


def constant(value: int | float) -> Any:
    """A module-level number that kernels may read."""
    return value if triton is None else tl.constexpr(value)


@jit
def _probe() -> None:
    pass


def has_triton() -> bool:
    """Whether Triton can be imported."""
    return triton is not None


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: TRITON_INTERPRET=1 stood before Triton's first import."""
    return has_triton() and not isinstance(_probe, triton.runtime.JITFunction)


def require_triton(device: torch.device) -> None:
    """Refuse a launch that cannot work.

    Raises:
        SettingsError: Triton is missing, or `device` is no CUDA device and the kernels are not interpreted.
    """
    if not has_triton():
        raise SettingsError(
            "kernel 'triton' asked for, but the package triton is not installed",
            hint="pip install triton, or use the kernel 'torch' (or 'auto').",
        )
    if device.type != "cuda" and not is_interpreted():
        raise SettingsError(
            f"kernel 'triton' asked for on device '{device}', but Triton's kernels need a CUDA device",
            hint="use the kernel 'torch' (or 'auto'); TRITON_INTERPRET=1 runs them, slowly, on the CPU.",
        )


@jit
def take_turn(EARLY: tl.constexpr) -> None:
    """First statement of a kernel that is launched with `early`: waits until what it reads has been written.

    The kernel behind it is let in at once: its programs take the places that this one's leave, and wait likewise.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@functools.cache
def early(device: torch.device) -> dict[str, bool]:
    """Launch options of a kernel that calls `take_turn`: where the card can, it starts while the one before ends."""
    if is_interpreted() or device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


def precision(x: torch.Tensor) -> str:
    """`input_precision` of `tl.dot` for operands in `x`'s dtype: fp32 ones must not round to tf32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


@contextmanager
def compiling_only(workers: int = 16) -> Iterator[None]:
    """Inside, a launch compiles its kernel and runs nothing; all compile side by side, and are done at the end.

    What kernels would have written stays as it was: only calls whose results nobody reads belong inside.
    """
    if not has_triton() or is_interpreted():
        yield
        return
    jitted = triton.runtime.JITFunction
    run = jitted.run
    compiled: dict[Any, Future[Any]] = {}
    device = torch.cuda.current_device()
    with ThreadPoolExecutor(workers, initializer=torch.cuda.set_device, initargs=(device,)) as pool:

        def submit(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            del warmup
            key = (id(kernel), tuple(map(_variant, args)), tuple(sorted(options.items())))
            if key not in compiled:
                compiled[key] = pool.submit(run, kernel, *args, grid=grid, warmup=True, **options)

        jitted.run = submit
        try:
            yield
        finally:
            jitted.run = run
        for future in compiled.values():
            future.result()


def _variant(argument: Any) -> Any:
    """What of an argument a kernel is compiled for: calls that differ in nothing else share one."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return "int", argument == 1, argument % 16 == 0, argument.bit_length() > 31
    return type(argument)
