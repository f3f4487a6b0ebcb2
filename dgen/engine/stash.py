"""Log-probabilities of converged rows: one or two stash calls, read back as plain numbers.

Outputs are allocated for the converging requests alone and read at once, so nothing can go stale in a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dgen.engine.request import Request
from dgen.engine.step import StepResult
from dgen.sampler import SamplerKernels
from dgen.sampler.chunks import capped

Scores = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Converging:
    """One request that converged at this step.

    `row` is its place in the step's batch, `ids` what it emits from the canvas's first position on, `pinned` which of
    those positions hold a pin: the emitted id is then not the argmax.
    """

    row: int
    request: Request
    ids: Sequence[int]
    pinned: frozenset[int] = frozenset()


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
        logits = result.raw_logits if raw else result.logits
        temps = torch.ones_like(result.temps) if raw else result.temps
        call = _StashCall(kernels, logits, result.softcap, temps, canvas_len)
        largest = call.scores(wanted, num_topk=max(c.request.logprobs or 0 for c in wanted))
        with_ids = [c for c in wanted if c.request.logprob_ids]
        asked = call.scores(with_ids, token_ids=[c.request.logprob_ids for c in with_ids]) if with_ids else {}
        for c in wanted:
            rows = _rows(c, largest[c.row], asked.get(c.row))
            for position, (logprob, rank) in call.pinned(c).items():
                rows[position] = replace(rows[position], logprob=logprob, rank=rank)
            found[c.row] = rows
    return found


def _rows(
    converging: Converging, largest: list[tuple[int, Scores]], asked: list[tuple[int, Scores]] | None
) -> list[RowLogprobs]:
    num_ids = len(converging.request.logprob_ids)
    rows = []
    for position, (rank, scores) in enumerate(largest):
        emitted = converging.ids[position]
        assert position in converging.pinned or scores[0][0] == emitted, "the stash scored another token"
        by_id = asked[position][1][1 : 1 + num_ids] if asked else ()
        top = scores[1 : 1 + (converging.request.logprobs or 0)]
        rows.append(RowLogprobs(scores[0][1], rank, top, by_id))
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
        num_topk = min(num_topk, self.logits.shape[1])
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
            torch.tensor([len(c.ids) for c in converging], dtype=torch.int64, device=device),
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
                (ranks[j][p], tuple(zip(ids[j][p], logprobs[j][p], strict=True))) for p in range(len(c.ids))
            ]
            for j, c in enumerate(converging)
        }

    def pinned(self, converging: Converging) -> dict[int, tuple[float, int]]:
        """Log-probability and rank of the pinned ids among what is emitted, by position."""
        positions = sorted(position for position in converging.pinned if position < len(converging.ids))
        if not positions:
            return {}
        n, device = len(positions), self.logits.device
        at = torch.tensor(positions, device=device) + converging.row * self.canvas_len
        ids = torch.tensor([[converging.ids[position]] for position in positions], device=device)
        rows = self.logits[at]
        out_ids = torch.zeros(n, 1, 2, dtype=torch.int64, device=device)
        out_logprobs = torch.zeros(n, 1, 2, dtype=torch.float32, device=device)
        one = torch.ones(n, dtype=torch.int64, device=device)
        # Each position as a request of one row that asks for its pin.
        self.kernels.stash(
            rows,
            1,
            torch.arange(n, device=device),
            torch.arange(n, device=device),
            one.bool(),
            one,
            self.temps[converging.row].expand(n).contiguous(),
            0,
            one,
            ids,
            out_ids,
            out_logprobs,
            torch.zeros(n, 1, dtype=torch.int64, device=device),
            False,
            softcap=self.softcap,
        )
        x = capped(rows, self.softcap)
        ranks = (x >= x.gather(1, ids)).sum(dim=1)
        return dict(
            zip(positions, zip(out_logprobs[:, 0, 1].tolist(), ranks.tolist(), strict=True), strict=True)
        )
