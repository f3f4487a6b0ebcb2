"""What `dgen bench sampler` times: row statistics, the stash, and the products around them, over many shapes.

Knows which figures there are and what each can't avoid; how they are timed is `peers` and `measure`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.chain import Chain, chain_figures, product_rate
from dgen.bench.logits import SOFTCAP, Logits, draw_logits
from dgen.bench.measure import Bench
from dgen.bench.peers import Peers
from dgen.bench.report import Figure, Report, Work
from dgen.bench.row_stats import reference_need
from dgen.bench.settings import SAMPLER, SamplerSettings, stashed
from dgen.bench.timer import Progress
from dgen.sampler import SamplerKernels

ALL, ONE, NONE = "all", "one", "none"


def run_sampler_suite(
    settings: SamplerSettings,
    kernels: SamplerKernels,
    environment: Mapping[str, Any],
    *,
    free_memory: Callable[[torch.device], int],
    progress: Progress,
) -> Report:
    """Time every combination that `settings` asks for; what memory can't hold is skipped, with the reason."""
    device = torch.device(settings.device)
    bench = Bench.on(device, settings.repeats, free_memory, progress)
    peers = Peers(bench, kernels, settings.compiled, settings.only)
    figures: list[Figure] = []
    with torch.inference_mode():
        bandwidth = copy_bandwidth(bench)
        products = product_rate(bench)
        for vocab in settings.vocabs:
            for rows in settings.rows:
                for dtype in settings.dtypes:
                    for softcap in (None, SOFTCAP):
                        logits = draw_logits(
                            bench, rows=rows, vocab=vocab, dtype=getattr(torch, dtype), softcap=softcap
                        )
                        figures += row_stats_figures(peers, logits)
                        if stashed(dtype, softcap is not None):
                            figures += stash_figures(peers, logits, settings.top_ks)
                        del logits
                chain = Chain(rows=rows, vocab=vocab, hidden=settings.hidden)
                figures += chain_figures(bench, kernels, chain, only=settings.only)
    return Report(SAMPLER, settings, environment, bandwidth, tuple(figures), products)


def row_stats_figures(peers: Peers, logits: Logits) -> Iterator[Figure]:
    """Row statistics of one kind of logits, without and with a bf16 softmax out."""
    temps, half = logits.temps(), torch.bfloat16
    for probs_dtype in (None, half):

        def call(kernels: SamplerKernels, probs_dtype: torch.dtype | None = probs_dtype) -> object:
            return kernels.row_stats(
                logits.values, temps, logits.canvas, 0, probs_dtype, softcap=logits.softcap
            )

        written = 0 if probs_dtype is None else logits.entries * half.itemsize
        yield from peers.figure(
            f"row_stats.{_shape(logits)}.{logits.key}{'' if probs_dtype is None else '.softmax'}",
            f"row statistics {_shape(logits)}, {logits.title}{'' if probs_dtype is None else ', bf16 softmax out'}",
            call,
            need=written,
            reference_need=written + reference_need(logits.entries),
            floor=Work(
                "logits read once" if probs_dtype is None else "logits read twice, softmax written",
                logits.bytes * (1 if probs_dtype is None else 2) + written,
            ),
            skipped=logits.lack,
        )


def stash_figures(peers: Peers, logits: Logits, top_ks: tuple[int, ...]) -> Iterator[Figure]:
    """The stash of one kind of logits: all rows kept for each K; one and none kept for the largest."""
    cases = [(top_k, ALL) for top_k in top_ks] + [(max(top_ks), ONE), (max(top_ks), NONE)]
    for top_k, kept in cases:
        rows = {ALL: logits.canvas, ONE: 1, NONE: 0}[kept]
        entries = rows * logits.vocab
        yield from peers.figure(
            f"stash.{_shape(logits)}.{logits.key}.k{top_k}.{kept}",
            f"stash {_shape(logits)}, {logits.title}, K = {top_k}, {kept} kept",
            StashCall(logits, top_k=top_k, rows=rows),
            need=0,
            reference_need=reference_need(entries),
            floor=Work("kept logits read once", entries * logits.values.dtype.itemsize) if rows else None,
            skipped=logits.lack,
        )


class StashCall:
    """Stashes the first `rows` rows of one request into outputs of its own; 0 rows: the request isn't kept."""

    def __init__(self, logits: Logits, *, top_k: int, rows: int) -> None:
        device, canvas = logits.values.device, logits.canvas
        self.logits, self.top_k = logits, top_k
        self.zero = torch.zeros(1, dtype=torch.int64, device=device)
        self.keep = torch.tensor([rows > 0], device=device)
        self.valid = torch.tensor([max(rows, 1)], device=device)
        self.temps = logits.temps()
        self.ids = torch.zeros(1, canvas, 1 + top_k, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(1, canvas, 1 + top_k, device=device)
        self.ranks = torch.zeros(1, canvas, dtype=torch.int64, device=device)

    def __call__(self, kernels: SamplerKernels) -> object:
        """Stash with one implementation."""
        logits = self.logits
        kernels.stash(
            logits.values, logits.canvas, self.zero, self.zero, self.keep, self.valid, self.temps, self.top_k,
            self.zero, None, self.ids, self.logprobs, self.ranks, False, softcap=logits.softcap,
        )  # fmt: skip
        return self.ids


def _shape(logits: Logits) -> str:
    return f"{logits.canvas}x{logits.vocab}"
