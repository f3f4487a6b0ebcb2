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


class Stashed:
    """Log-probabilities that have left the device; `rows` makes plain numbers of them, which no device waits for."""

    def __init__(self) -> None:
        self._found: list[tuple[Converging, Read, Read | None, dict[int, tuple[float, int]]]] = []

    def add(
        self,
        converging: Converging,
        largest: Read,
        asked: Read | None,
        pinned: dict[int, tuple[float, int]],
    ) -> None:
        """One request's: emitted ids' and the largest, those asked for by id, and (log-probability, rank) of pins."""
        self._found.append((converging, largest, asked, pinned))

    def rows(self) -> dict[int, list[RowLogprobs]]:
        """Of every emitted position, by batch row; requests that asked for none are left out."""
        found = {}
        for converging, largest, asked, pinned in self._found:
            rows = _rows(converging, largest.of(converging), asked.of(converging) if asked else None)
            for position, (logprob, rank) in pinned.items():
                rows[position] = replace(rows[position], logprob=logprob, rank=rank)
            found[converging.row] = rows
        return found


def stash_logprobs(
    kernels: SamplerKernels, result: StepResult, canvas_len: int, converging: Sequence[Converging]
) -> Stashed:
    """Take from the device what the requests ask for; the step's tensors are not needed after that."""
    stashed = Stashed()
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
        asked = (
            call.scores(with_ids, token_ids=[c.request.logprob_ids for c in with_ids]) if with_ids else None
        )
        for c in wanted:
            stashed.add(c, largest, asked if c.request.logprob_ids else None, call.pinned(c))
    return stashed


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
class Read:
    """What one call of the stash has brought to the host, its requests' places in it by batch row.

    ids int64 and logprobs fp32 [requests, canvas_len, width], ranks int64 [requests, canvas_len].
    """

    places: dict[int, int]
    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor

    def of(self, converging: Converging) -> list[tuple[int, Scores]]:
        """For each emitted position its rank and (id, log-probability), the emitted id first."""
        j, n = self.places[converging.row], len(converging.ids)
        ids, logprobs = self.ids[j, :n].tolist(), self.logprobs[j, :n].tolist()
        scores = (tuple(zip(*position, strict=True)) for position in zip(ids, logprobs, strict=True))
        return list(zip(self.ranks[j, :n].tolist(), scores, strict=True))


@dataclass(frozen=True, slots=True)
class _StashCall:
    kernels: SamplerKernels
    logits: torch.Tensor
    softcap: float | None
    temps: torch.Tensor
    canvas_len: int

    def scores(
        self, converging: Sequence[Converging], *, num_topk: int = 0, token_ids: Sequence[Sequence[int]] = ()
    ) -> Read:
        """The emitted ids' scores, and those of the largest or of token_ids."""
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
        places = {c.row: j for j, c in enumerate(converging)}
        return Read(places, out_ids.cpu(), out_logprobs.cpu(), out_ranks.cpu())

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
