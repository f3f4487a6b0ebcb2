"""Log-probabilities of converged rows: one or two stash calls, read back as plain numbers.

Outputs are allocated for the converging requests alone and read at once, so nothing can go stale in a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgen.engine.request import Request
from dgen.engine.step import StepResult
from dgen.sampler import SamplerKernels

Scores = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Converging:
    """One request that converged at this step: its row in the step's batch and how many positions it emits."""

    row: int
    request: Request
    emitted: int


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The emitted id's log-probability and rank, the K largest, and those asked for by id."""

    logprob: float
    rank: int
    top: Scores
    asked: Scores


def stash_logprobs(
    kernels: SamplerKernels, result: StepResult, canvas_len: int, converging: Sequence[Converging]
) -> dict[int, list[RowLogprobs]]:
    """Log-probabilities of every emitted position, by batch row; requests that asked for none are left out."""
    found: dict[int, list[RowLogprobs]] = {}
    for logprobs_of in ("tempered", "raw"):
        wanted = [
            c for c in converging if c.request.logprobs is not None and c.request.logprobs_of == logprobs_of
        ]
        if not wanted:
            continue
        raw = logprobs_of == "raw"
        logits, softcap = (result.raw_logits, result.raw_softcap) if raw else (result.logits, result.softcap)
        temps = torch.ones_like(result.temps) if raw else result.temps
        call = _StashCall(kernels, logits, softcap, temps, canvas_len)
        largest = call.scores(wanted, num_topk=max(c.request.logprobs or 0 for c in wanted))
        with_ids = [c for c in wanted if c.request.logprob_ids]
        asked = call.scores(with_ids, token_ids=[c.request.logprob_ids for c in with_ids]) if with_ids else {}
        for c in wanted:
            found[c.row] = _rows(c, largest[c.row], asked.get(c.row))
    return found


def _rows(
    converging: Converging, largest: list[tuple[int, Scores]], asked: list[tuple[int, Scores]] | None
) -> list[RowLogprobs]:
    width = 1 + (converging.request.logprobs or 0)
    num_ids = len(converging.request.logprob_ids)
    rows = []
    for position, (rank, scores) in enumerate(largest):
        by_id = asked[position][1][1 : 1 + num_ids] if asked else ()
        rows.append(RowLogprobs(scores[0][1], rank, scores[1:width], by_id))
    return rows


@dataclass(frozen=True, slots=True)
class _StashCall:
    kernels: SamplerKernels
    logits: torch.Tensor
    softcap: float | None
    temps: torch.Tensor
    canvas_len: int

    def scores(
        self, converging: Sequence[Converging], *, num_topk: int = 0, token_ids: Sequence[Sequence[int]] = ()
    ) -> dict[int, list[tuple[int, Scores]]]:
        """By batch row, for each emitted position: its rank and (id, log-probability), the emitted id first."""
        m, device = len(converging), self.logits.device
        rows = torch.tensor([c.row for c in converging], dtype=torch.int64, device=device)
        num_ids = torch.zeros(m, dtype=torch.int64, device=device)
        padded_ids = None
        width = 1 + num_topk
        if token_ids:
            longest = max(len(ids) for ids in token_ids)
            width = 1 + longest
            num_ids = torch.tensor([len(ids) for ids in token_ids], device=device)
            padded_ids = torch.tensor(
                [[*ids, *[0] * (longest - len(ids))] for ids in token_ids], device=device
            )
        out_ids = torch.zeros(m, self.canvas_len, width, dtype=torch.int64, device=device)
        out_logprobs = torch.zeros(m, self.canvas_len, width, dtype=torch.float32, device=device)
        out_ranks = torch.zeros(m, self.canvas_len, dtype=torch.int64, device=device)
        self.kernels.stash(
            self.logits,
            self.canvas_len,
            rows,
            torch.arange(m, device=device),
            torch.ones(m, dtype=torch.bool, device=device),
            torch.tensor([c.emitted for c in converging], dtype=torch.int64, device=device),
            self.temps[rows],
            num_topk,
            num_ids,
            padded_ids,
            out_ids,
            out_logprobs,
            out_ranks,
            False,
            softcap=self.softcap,
        )
        ids, logprobs, ranks = out_ids.tolist(), out_logprobs.tolist(), out_ranks.tolist()
        return {
            c.row: [
                (ranks[j][p], tuple(zip(ids[j][p], logprobs[j][p], strict=True))) for p in range(c.emitted)
            ]
            for j, c in enumerate(converging)
        }
