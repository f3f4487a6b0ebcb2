"""What the engine says while it works: plain, frozen data that imports the standard library alone.

`index` is the position of the request among those given to `Engine.run`; `canvas` and `step` count from 0.
Order for one request: Prefilled, then per canvas Denoised* Converged [Committed], then Finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConvergedBy = Literal["confidence", "steps"]


@dataclass(frozen=True, slots=True)
class Emitted:
    """One emitted token and, where the request asked for them, its log-probabilities.

    `position` counts emitted tokens of the request from 0. `logprob` is None when nothing was stashed, else a
    natural-log probability (may be -inf); `rank` is 1-based, the number of logits at or above the emitted one.
    `top` and `asked` are (token id, log-probability) pairs: the largest ones, and those of `logprob_ids`.
    `entropy` is in nats, at `temperature`.
    """

    token_id: int
    position: int
    canvas: int
    step: int
    temperature: float
    entropy: float
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt's KV is written; that of its first `reused` tokens was held from an earlier request."""

    index: int
    slot: int
    prompt_tokens: int
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Denoised:
    """One denoising step is done.

    `draft` is the argmax canvas [canvas_len], `accepted` the acceptance mask of this very step (not monotone),
    `entropy` in nats per position, `mean_entropy` their mean over unpinned positions.
    """

    index: int
    canvas: int
    step: int
    temperature: float
    mean_entropy: float
    accepted: tuple[bool, ...]
    draft: tuple[int, ...]
    entropy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Converged:
    """A canvas is final: `tokens` is what it emits, cut at EOS and at the token budget; `steps` is its count."""

    index: int
    canvas: int
    steps: int
    converged_by: ConvergedBy
    tokens: tuple[Emitted, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The canvas is written into the KV cache and the next one begins."""

    index: int
    canvas: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is over; its slot is free."""

    index: int
    completion: Completion


FinishReason = Literal["eos", "stop", "length", "interrupted", "error"]


@dataclass(frozen=True, slots=True)
class Completion:
    """Everything that a finished request produced.

    `steps` holds the denoising steps (decoder passes) of each canvas, the aborted one of an interruption
    included; `converged_by` has one entry a converged canvas. `error` is the failure when `finish_reason` is
    "error", `error_hint` the next thing to try, and `out_of_memory` tells that fewer requests at a time may help.
    """

    index: int
    tokens: tuple[Emitted, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    steps: tuple[int, ...]
    converged_by: tuple[ConvergedBy, ...]
    seed: int
    error: str | None = None
    error_hint: str = ""
    out_of_memory: bool = False

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens / decoder passes; 0 before the first pass."""
        passes = sum(self.steps)
        return len(self.tokens) / passes if passes else 0.0


Event = Prefilled | Denoised | Converged | Committed | Finished
