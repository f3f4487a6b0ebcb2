"""What is timed: a model, loaded or made of random weights, and requests of a chosen size for it.

Prompts are random ids, the same for both bodies: what is timed doesn't depend on what they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import torch

from dgen.bench.clocked import ClockedDenoiser
from dgen.bench.timer import Timer
from dgen.checkpoint import Checkpoint
from dgen.checkpoint.architecture import Architecture
from dgen.checkpoint.random_weights import build_random
from dgen.denoiser.base import Denoiser
from dgen.denoiser.choice import build_denoiser
from dgen.engine.engine import Engine
from dgen.engine.events import Denoised, Event, Finished
from dgen.engine.request import Request
from dgen.errors import DgenError, SettingsError
from dgen.sampler import SamplerKernels

NEVER = 1e-30
"""Nats of mean entropy below which no canvas falls: it takes all its steps. transformers refuses 0."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A DiffusionGemmaForBlockDiffusion and its name; `revision` as in Checkpoint."""

    model: Any
    name: str
    revision: str | None = None

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> Subject:
        """The model of a loaded checkpoint."""
        return cls(checkpoint.model, checkpoint.name, checkpoint.revision)

    @classmethod
    def of_architecture(cls, architecture: Architecture, *, device: str, dtype: str) -> Subject:
        """A model of these sizes with random weights; errors as in `build_random`."""
        return cls(build_random(architecture, device=device, dtype=dtype), f"arch {architecture.name}")

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    @property
    def dtype(self) -> str:
        """Of the weights: bfloat16 or float32."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def canvas_len(self) -> int:
        """Positions of a canvas."""
        return int(self.model.config.canvas_length)

    @property
    def max_context(self) -> int:
        """Positions that the model was made for."""
        return int(self.model.config.get_text_config().max_position_embeddings)

    @property
    def weight_bytes(self) -> int:
        """Of all parameters, tied ones once."""
        return sum(weight.nbytes for weight in chain(self.model.parameters(), self.model.buffers()))

    def check(self, *, prompt: int, canvases: int, hint: str = "Shorten --prompt-tokens.") -> int:
        """Positions that a prompt and its canvases take.

        Raises:
            SettingsError: the model has fewer.
        """
        need = prompt + canvases * self.canvas_len
        if need > self.max_context:
            raise SettingsError(
                f"a prompt of {prompt} tokens and {canvases} canvases of {self.canvas_len} make {need} positions; "
                f"{self.name} has {self.max_context}",
                hint=hint,
            )
        return need

    def requests(self, *, batch: int, prompt: int, tokens: int, steps: int) -> list[Request]:
        """`batch` requests of exactly `steps` steps a canvas, whose canvases never end early.

        Their ids avoid both ends of the vocabulary, where special tokens and those of images lie.
        """
        vocab = self.model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(vocab // 32, vocab - vocab // 16, (batch, prompt), generator=generator).tolist()
        return [
            Request(
                prompt_ids=tuple(prompt_ids), eos_ids=frozenset(), max_tokens=tokens, steps=steps, entropy_bound=0.1,
                t_min=0.4, t_max=0.8, stability=1, confidence=NEVER, seed=1 + number,
            )
            for number, prompt_ids in enumerate(ids)
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stand:
    """A subject in dgen's engine, ready to be timed.

    Attributes:
        ready: seconds from the weights in memory to the end of the first step: kernels compiled, graphs captured.
        told: what the engine said of its captures.
    """

    subject: Subject
    timer: Timer
    denoiser: ClockedDenoiser
    kernels: SamplerKernels
    engine: Engine
    graphs: bool
    ready: float
    told: tuple[str, ...]

    @classmethod
    def make(
        cls,
        subject: Subject,
        kernels: SamplerKernels,
        timer: Timer,
        *,
        denoiser: str,
        graphs: bool,
        num_slots: int,
        max_context: int,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Stand:
        """Build the denoiser `denoiser` (auto, reference, fused) and the engine, and run a first step.

        Raises:
            DgenError: no such denoiser here, or the first step failed.
        """
        told: list[str] = []
        progress("getting ready: denoiser, kernels, graphs")
        started = time.perf_counter()
        inner: Denoiser = build_denoiser(
            subject.model, denoiser=denoiser, num_slots=num_slots, max_context=max_context, graphs=graphs
        )
        clocked = ClockedDenoiser(inner, timer)
        engine = Engine(clocked, kernels, graphs=graphs)
        engine.prepare(told.append)
        (request,) = subject.requests(batch=1, prompt=1, tokens=1, steps=1)
        for event in engine.run([request]):
            raise_failure(event)
        timer.wait()
        ready = time.perf_counter() - started
        return cls(subject, timer, clocked, kernels, engine, graphs, ready, tuple(told))

    def settings(self) -> dict[str, Any]:
        """What a report says of it, by name of `ModelSettings`."""
        subject, denoiser = self.subject, self.denoiser
        return {
            "model": subject.name,
            "revision": subject.revision,
            "dtype": subject.dtype,
            "model_canvas": subject.canvas_len,
            "device": str(subject.device),
            "kernels": self.kernels.name,
            "denoiser": denoiser.name,
            "graphs": self.graphs,
            "num_slots": denoiser.num_slots,
            "max_context": denoiser.max_context,
        }

    def steps(self, *, batch: int, prompt: int, warm: int, repeats: int) -> tuple[float, ...]:
        """Seconds of each of `repeats` steps of a batch, after `warm` others, as the engine's consumer sees them.

        Raises:
            DgenError: a request failed.
        """
        # One endless canvas: convergence, stash and commit are no part of a step.
        requests = self.subject.requests(
            batch=batch, prompt=prompt, tokens=self.subject.canvas_len, steps=1_000_000
        )
        times: list[float] = []
        events = self.engine.run(requests)
        try:
            for event in events:
                raise_failure(event)
                if isinstance(event, Denoised) and event.index == 0:
                    times.append(time.perf_counter())
                    if len(times) > warm + repeats:
                        break
        finally:
            events.close()
            self.timer.wait()
        later = times[warm:]
        return tuple(after - before for before, after in pairwise(later))


def with_logprobs(requests: list[Request], count: int) -> list[Request]:
    """The same requests, each keeping its `count` largest log-probabilities."""
    return [replace(request, logprobs=count) for request in requests]


def raise_failure(event: Event) -> None:
    """Raise what ended a request, if anything did."""
    if isinstance(event, Finished) and event.completion.finish_reason == "error":
        raise DgenError(str(event.completion.error), hint=event.completion.error_hint)
