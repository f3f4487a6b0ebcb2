"""A denoiser without a model: its logits follow a script, and it writes down every call made to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from dgen.engine.engine import Engine
from dgen.engine.events import Completion, Event, Finished
from dgen.engine.request import Request
from dgen.sampler import kernels_for

TEXT = (10, 11, 12, 13, 14, 15)
BASE = Request(
    prompt_ids=(2, 3, 4),
    eos_ids=frozenset({1, 7}),
    max_tokens=6,
    steps=8,
    entropy_bound=0.1,
    t_min=0.4,
    t_max=0.8,
    stability=1,
    confidence=0.005,
    seed=5,
)


@dataclass
class Call:
    """One denoising pass of one slot: which prompt, canvas and step it was, and the canvas that went in."""

    prompt: tuple[int, ...]
    canvas: int
    step: int
    ids: tuple[int, ...]


Script = Callable[[Call], torch.Tensor]
"""From a call to logits [canvas_len, vocab]."""


@dataclass
class ScriptedDenoiser:
    """Honours the Denoiser contract with logits from `script`."""

    script: Script
    vocab_size: int = 40
    canvas_len: int = 6
    num_slots: int = 1
    max_context: int = 10_000
    name: str = "scripted"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    softcap: float | None = None
    probs_dtype: torch.dtype | None = torch.float32
    capturable: bool = False
    calls: list[Call] = field(default_factory=list)
    prefilled: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    extended: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    committed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    conditioned: list[tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    held: dict[int, list] = field(default_factory=dict)

    def prepare(self, tell=None) -> None:
        pass

    def prefill(self, slot: int, ids: torch.Tensor) -> None:
        assert slot not in self.held, "the slot still holds a request"
        self.held[slot] = [tuple(ids.tolist()), 0, 0]
        self.prefilled.append((slot, tuple(ids.tolist())))

    def extend(self, slot: int, ids: torch.Tensor) -> None:
        self.held.setdefault(slot, [(), 0, 0])[0] += tuple(ids.tolist())
        self.extended.append((slot, tuple(ids.tolist())))

    def copy(self, source: int, target: int) -> None:
        assert target not in self.held, "the slot still holds a request"
        self.held[target] = list(self.held[source])

    def denoise(self, slots: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        rows = []
        for slot, ids in zip(slots.tolist(), canvas, strict=True):
            prompt, index, step = self.held[slot]
            call = Call(prompt, index, step, tuple(ids.tolist()))
            self.calls.append(call)
            self.held[slot][2] += 1
            rows.append(self.script(call))
        return torch.cat(rows)

    def condition(self, slots, logits, temps, probs, pinned) -> None:
        assert logits.shape == (len(slots) * self.canvas_len, self.vocab_size)
        for j, slot in enumerate(slots.tolist()):
            self.conditioned.append(
                (slot, probs.view(len(slots), self.canvas_len, -1)[j].clone(), pinned[j].clone())
            )

    def commit(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        for slot, canvas in zip(slots.tolist(), ids.tolist(), strict=True):
            self.committed.append((slot, tuple(canvas)))
            self.held[slot][1] += 1
            self.held[slot][2] = 0

    def release(self, slot: int) -> None:
        self.held.pop(slot, None)


def towards(ids: Sequence[int], vocab: int = 40, sure: float = 20.0) -> torch.Tensor:
    """Logits [len(ids), vocab] whose argmax is `ids`; `sure` is how far it stands above the rest."""
    logits = torch.zeros(len(ids), vocab)
    logits[torch.arange(len(ids)), torch.tensor(ids)] = sure
    return logits


def run(denoiser: ScriptedDenoiser, *requests: Request) -> tuple[list[Event], dict[int, Completion]]:
    """All events of the requests, and each one's completion by its index."""
    events = list(Engine(denoiser, kernels_for("torch", "cpu")).run(requests))
    done = {event.index: event.completion for event in events if isinstance(event, Finished)}
    return events, done


def ids(completion: Completion) -> tuple[int, ...]:
    """The emitted token ids."""
    return tuple(token.token_id for token in completion.tokens)
