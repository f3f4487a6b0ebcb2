"""The training loop: pools, captured steps, the schedule over the wall clock, and files written while it runs.

On CUDA a whole step (batch, noise, passes, losses, backward, clipping, AdamW, average) is one graph for each prefix
length; where capture fails, or on a CPU, the same function runs eagerly.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from builtin_recipe import forward, optimizer
from builtin_recipe.examples import build_pools
from builtin_recipe.model import build_config, build_model, write_model
from builtin_recipe.objective import Data, batch_loss, to_device
from builtin_recipe.quickcheck import quick_check
from builtin_recipe.sizes import LAYERS, LONG, SHORT
from builtin_recipe.tokenizer import build_tokenizer, write_tokenizer

Say = Callable[[str], None]
SYNC_EVERY = 20  # the host may run this many steps ahead of the device
PATTERN = ("short", "short", "long")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one training run does. `minutes` counts the steps alone; `steps` (0: no limit) ends it earlier."""

    out: Path
    device: str = "cpu"
    seed: int = 0
    minutes: float = 7.5
    steps: int = 0
    rows: int = 256
    pool: int = 600_000
    rate: float = 2e-3
    warmup: int = 300
    hidden: int = 256
    layers: tuple[str, ...] = LAYERS
    report_every: float = 60.0
    checks: int = 32
    compiled: bool = False
    start: Path | None = None
    processes: int = 1


class Trainer:
    """A model in training: its flat weights, its data, and one callable step for each prefix length."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer, say: Say) -> None:
        self.plan, self.tokenizer, self.say = plan, tokenizer, say
        self.device = torch.device(plan.device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.model = _first_model(plan).to(self.device)
        self.layout, flat = forward.flatten(self.model)
        self.state = optimizer.start(flat.to(self.device))
        torch.manual_seed(plan.seed)
        began = time.monotonic()
        wanted = {SHORT: plan.pool, LONG: plan.pool // 2}
        pools = build_pools(tokenizer, seed=plan.seed, rows=wanted, processes=plan.processes)
        self.data = {
            "short": to_device(pools[SHORT], self.device, rows=plan.rows),
            "long": to_device(pools[LONG], self.device, rows=max(plan.rows // 2, 1)),
        }
        say(f"examples made in {time.monotonic() - began:.1f} s")

    def step(self, data: Data) -> Tensor:
        """One training step; the canvas cross-entropy."""
        loss, main = batch_loss(self.model, self.layout, self.state.flat, data, self.dtype)
        (grad,) = torch.autograd.grad(loss, self.state.flat)
        optimizer.update(self.state, grad)
        return main

    def prepare(self) -> dict[str, Callable[[], Tensor]]:
        """The steps by prefix length: captured on CUDA, eager elsewhere or where capture fails."""
        eager: dict[str, Callable[[], Tensor]] = {n: partial(self.step, d) for n, d in self.data.items()}
        if self.device.type != "cuda":
            return eager
        try:
            began = time.monotonic()
            steps = {name: _capture(step) for name, step in eager.items()}
            self.say(f"steps captured in {time.monotonic() - began:.1f} s")
            return steps
        except RuntimeError as error:
            self.say(f"capture failed, running eagerly: {error}")
            torch.cuda.synchronize()
            return eager

    def write(self) -> None:
        """Write the averaged weights and the tokenizer as a checkpoint folder."""
        forward.unflatten_into(self.model, self.layout, self.state.average)
        write_model(self.model, self.plan.out)
        write_tokenizer(self.tokenizer, self.plan.out)

    def check(self) -> str:
        """A line on the averaged weights' answers to held-out questions."""
        return quick_check(
            self.model, self.layout, self.state.average, self.tokenizer, each=self.plan.checks,
            seed=self.plan.seed + 1, dtype=self.dtype,
        )  # fmt: skip


def _first_model(plan: Plan) -> Any:
    if plan.start is None:
        return build_model(build_config(hidden=plan.hidden, layers=plan.layers), seed=plan.seed)
    from transformers import DiffusionGemmaForBlockDiffusion

    return DiffusionGemmaForBlockDiffusion.from_pretrained(plan.start, dtype=torch.float32)


def _capture(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def rate_at(progress: float, step: int, plan: Plan) -> float:
    """The learning rate: a linear warm-up in steps, then a cosine over the run's share that is done, down to 1 %."""
    cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return plan.rate * min((step + 1) / plan.warmup, 1.0) * cosine


def train(plan: Plan, say: Say) -> dict[str, Any]:
    """Train a checkpoint into `plan.out` and return what was measured on the way (steps, seconds, last loss)."""
    tokenizer = build_tokenizer(plan.seed)
    if plan.compiled:
        torch._dynamo.config.recompile_limit = 64
        forward.layer = torch.compile(forward.layer, dynamic=False)
    trainer = Trainer(plan, tokenizer, say)
    steps = trainer.prepare()
    limit, count, last_report = plan.minutes * 60, 0, 0.0
    began = time.monotonic()
    paused = 0.0
    losses: dict[str, float] = {}
    while True:
        elapsed = time.monotonic() - began - paused
        progress = max(elapsed / limit, count / plan.steps if plan.steps else 0.0)
        if progress >= 1.0:
            break
        for _ in range(SYNC_EVERY):
            trainer.state.rate.fill_(rate_at(progress, count, plan))
            name = PATTERN[count % len(PATTERN)]
            loss = steps[name]()
            count += 1
            if count % SYNC_EVERY < len(PATTERN):
                losses[name] = float(loss)
        if not all(math.isfinite(v) for v in losses.values()):
            raise RuntimeError(f"the loss is no number at step {count}: {losses}")
        if elapsed - last_report >= plan.report_every:
            last_report = elapsed
            here = time.monotonic()
            trainer.write()
            shown = ", ".join(f"{k} {v:.4f}" for k, v in losses.items())
            say(f"{elapsed:.0f} s, step {count}, {1000 * elapsed / count:.1f} ms a step, loss {shown}")
            say("  " + trainer.check())
            paused += time.monotonic() - here
    seconds = time.monotonic() - began - paused
    trainer.write()
    say("  " + trainer.check())
    report = {
        "steps": count,
        "seconds": round(seconds, 1),
        "losses": losses,
        "rows": plan.rows,
        "device": _card(plan),
    }
    say(f"{report}")
    return report


def _card(plan: Plan) -> str:
    return torch.cuda.get_device_name() if plan.device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
