"""What the engine is asked for: ids and numbers, no text, standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LogprobsOf = Literal["tempered", "raw"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to denoise its answer.

    Args:
        prompt_ids: token ids of the prompt; at least one.
        eos_ids: ids that end the request when a converged canvas holds one.
        max_tokens: exact upper bound of emitted tokens.
        steps: most denoising steps a canvas.
        entropy_bound: nats; see `sampler.entropy_bound.accept`.
        t_min, t_max: temperature schedule, t_max at the first step; 0 is greedy.
        stability: how many previous argmax canvases the current one must equal (0: none).
        confidence: nats; a canvas is confident while its mean entropy is below.
        top_k, top_p: filters of the tempered distribution; 0 and 1.0 are off.
        seed: keys the request's noise; the same seed gives the same tokens, whatever shares the batch.
        logprobs: None stashes nothing; K >= 0 stashes the emitted token's log-probability and the K largest.
        logprob_ids: further ids to report at each position (needs `logprobs`).
        logprobs_of: "tempered" (the schedule's temperature, filters included) or "raw" (T = 1, no filter).
        seed_canvas: initial ids of the answer, from its first position on; positions beyond it start random.
        pins: answer position -> token id, held through every step and emitted as given.
        hold: how many leading prompt ids a request to come is likely to begin with; an engine that has a place
            for it keeps their KV. Changes no token.
        may_stop: whether `Engine.stop` is likely to end it at a canvas' end. If not, an engine whose device works by
            itself begins the next canvas before the consumer has seen this one. Changes no token.
    """

    prompt_ids: tuple[int, ...]
    eos_ids: frozenset[int]
    max_tokens: int
    steps: int
    entropy_bound: float
    t_min: float
    t_max: float
    stability: int
    confidence: float
    seed: int
    top_k: int = 0
    top_p: float = 1.0
    logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    logprobs_of: LogprobsOf = "tempered"
    seed_canvas: tuple[int, ...] = ()
    pins: Mapping[int, int] = field(default_factory=dict)
    hold: int = 0
    may_stop: bool = False
