"""A running request, and what a step's outcome means for it. Plain data and the host's arithmetic; no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dgen.engine.events import ConvergedBy, Emitted, FinishReason
from dgen.engine.request import Request
from dgen.engine.step import Reading
from dgen.errors import MemoryLimitError, NumericalError


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


def out_of_memory(error: Exception, doing: str) -> MemoryLimitError:
    """The error of a request that torch's out-of-memory `error` ended while `doing` it."""
    return MemoryLimitError(
        f"out of memory in {doing}: {str(error).splitlines()[0]}",
        hint="Shorten the prompt or --max-tokens, or take fewer --slots.",
    )


def sort_out(
    jobs: Sequence[Job], reading: Reading
) -> tuple[list[int], list[int], list[tuple[Job, NumericalError]]]:
    """Rows that take another step, rows that converged at this one, and requests whose logits are broken."""
    going_on, converging, failed = [], [], []
    for row, (job, confident, broken) in enumerate(zip(jobs, reading.confident, reading.broken, strict=True)):
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
        elif confident or job.step + 1 == job.request.steps:
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
