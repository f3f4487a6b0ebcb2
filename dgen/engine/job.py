"""A running request, and what a step's outcome means for it. Plain data and the host's arithmetic; no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dgen.engine.events import Completion, ConvergedBy, Emitted, FinishReason
from dgen.engine.request import Request
from dgen.engine.stash import RowLogprobs
from dgen.engine.step import Reading, StepView
from dgen.errors import DgenError, MemoryLimitError, NumericalError


@dataclass(slots=True)
class Job:
    """A running request and what it has reached."""

    index: int
    request: Request
    slot: int
    canvas: int = 0
    step: int = 0
    tokens: list[Emitted] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    converged_by: list[ConvergedBy] = field(default_factory=list)

    def pinned(self, canvas_len: int) -> frozenset[int]:
        """Positions of the current canvas that hold a pin."""
        first = self.canvas * canvas_len
        return frozenset(p - first for p in self.request.pins if first <= p < first + canvas_len)

    def emitted(
        self, ids: Sequence[int], seen: StepView, rows: Sequence[RowLogprobs] | None
    ) -> tuple[Emitted, ...]:
        """The tokens of a canvas that converged at the step just counted."""
        return tuple(
            Emitted(
                token_id,
                len(self.tokens) + p,
                self.canvas,
                self.step - 1,
                seen.temperature,
                seen.entropy[p],
                *((rows[p].logprob, rows[p].rank, rows[p].top, rows[p].asked) if rows else ()),
            )
            for p, token_id in enumerate(ids)
        )

    def completion(self, reason: FinishReason, error: DgenError | None) -> Completion:
        """What it has come to."""
        return Completion(
            index=self.index,
            tokens=tuple(self.tokens),
            finish_reason=reason,
            prompt_tokens=len(self.request.prompt_ids),
            steps=tuple([*self.steps, self.step] if self.step else self.steps),
            converged_by=tuple(self.converged_by),
            seed=self.request.seed,
            error=error.message if error else None,
            error_hint=error.hint if error else "",
            out_of_memory=isinstance(error, MemoryLimitError),
        )


def out_of_memory(error: Exception, doing: str) -> MemoryLimitError:
    """The error of a request that torch's out-of-memory `error` ended while `doing` it."""
    return MemoryLimitError(
        f"out of memory in {doing}: {str(error).splitlines()[0]}",
        hint="Shorten the prompt or --max-tokens, or take fewer --slots.",
    )


def sort_out(
    jobs: Sequence[Job], rows: Sequence[int], reading: Reading
) -> tuple[list[int], list[int], list[tuple[Job, NumericalError]]]:
    """Which of `rows` take another step, and which converged at this one; the requests whose logits are broken."""
    going_on, converging, failed = [], [], []
    for row in rows:
        job, broken = jobs[row], reading.broken[row]
        if broken is not None:
            where = f"canvas {job.canvas}, step {job.step}, position {broken}"
            failed.append(
                (
                    job,
                    NumericalError(
                        f"the model's logits are not a distribution (NaN or nothing finite) at {where}",
                        hint="Check the checkpoint; if it runs in bfloat16, try --dtype float32.",
                    ),
                )
            )
        elif reading.confident[row] or job.step + 1 == job.request.steps:
            converging.append(row)
        else:
            going_on.append(row)
    return going_on, converging, failed


def cut(job: Job, argmax: Sequence[int]) -> tuple[Sequence[int], FinishReason | None]:
    """What a converged canvas emits (up to and with the first EOS, within the budget) and whether that is the end."""
    budget = job.request.max_tokens - len(job.tokens)
    for position, token_id in enumerate(argmax[:budget]):
        if token_id in job.request.eos_ids:
            return argmax[: position + 1], "eos"
    ids = argmax[:budget]
    return ids, "length" if len(ids) == budget else None
