"""Training texts as fixed-size token rows: one canvas an example, its left-padded prefix, and how much of it is text.

Made in parallel before training starts; shard i of a seed is the same on every machine.
"""

import multiprocessing
import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from builtin_recipe.corpus import KINDS, Sample, World
from builtin_recipe.sizes import CANVAS, LONG, SHORT
from builtin_recipe.template import EOS, PAD
from builtin_recipe.tokenizer import id_of

SHARD = 4000


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows of one prefix length: `prefix` [rows, length] and `canvas` [rows, CANVAS] int16, and int16 row facts.

    `pads` counts the padded positions, `filled` the canvas positions before the fill, `gaps` is 1 where only gaps
    are asked.
    """

    prefix: np.ndarray
    canvas: np.ndarray
    pads: np.ndarray
    filled: np.ndarray
    gaps: np.ndarray

    def __len__(self) -> int:
        return len(self.pads)


def join(pools: list[Pool]) -> Pool:
    """Pools of one prefix length behind each other."""
    return Pool(*(np.concatenate([getattr(p, f) for p in pools]) for f in Pool.__slots__))


def canvases_of(answer: list[int], end: int) -> list[list[int]]:
    """The answer with its end token in whole canvases, filled up with EOS."""
    ids = [*answer, end]
    ids += [id_of(EOS)] * (-len(ids) % CANVAS)
    return [ids[i : i + CANVAS] for i in range(0, len(ids), CANVAS)]


def _row(
    sample: Sample, tokenizer: Tokenizer, rng: random.Random, *, later: bool
) -> tuple[list[int], ...] | None:
    """Prefix, canvas and [filled, gaps] of one canvas of the sample; of a canvas behind the first if `later`."""
    prefix = tokenizer.encode(sample.prefix, add_special_tokens=False).ids
    answer = tokenizer.encode(sample.answer, add_special_tokens=False).ids
    canvases = canvases_of(answer, id_of(sample.end))
    first = 1 if later else 0
    if len(canvases) <= first:
        return None
    k = rng.randrange(first, len(canvases))
    before = [t for canvas in canvases[:k] for t in canvas]
    filled = min(len(answer) + 1 - k * CANVAS, CANVAS)
    return prefix + before, canvases[k], [filled, int(sample.gaps_only)]


def _shard(task: tuple[int, int, int, str]) -> Pool:
    seed, number, length, tokenizer_json = task
    tokenizer = Tokenizer.from_str(tokenizer_json)
    world, rng = World(), random.Random(f"examples-{seed}-{length}-{number}")
    rows: list[tuple[list[int], ...]] = []
    while len(rows) < SHARD:
        if length == SHORT:
            row = _row(world.sample(rng), tokenizer, rng, later=False)
        elif rng.random() < 0.7:
            row = _row(world.sample(rng, kinds=("stories",)), tokenizer, rng, later=True)
        else:
            kinds = rng.choice((KINDS, KINDS, ("refusals",), ("counting",)))
            row = _row(
                world.sample(rng, kinds=kinds, earlier=rng.choice((0, 1, 2, 3))), tokenizer, rng, later=False
            )
        if row is None or len(row[0]) > length or (length == LONG and len(row[0]) <= SHORT):
            continue
        rows.append(row)
    prefix = np.full((SHARD, length), id_of(PAD), np.int16)
    for i, (ids, _, _) in enumerate(rows):
        prefix[i, length - len(ids) :] = ids
    facts = np.array([r[2] for r in rows], np.int16)
    pads = np.array([length - len(r[0]) for r in rows], np.int16)
    return Pool(prefix, np.array([r[1] for r in rows], np.int16), pads, facts[:, 0], facts[:, 1])


def build_pools(tokenizer: Tokenizer, *, seed: int, rows: dict[int, int], processes: int) -> dict[int, Pool]:
    """At least `rows[length]` examples for each prefix length in `rows`."""
    spec = tokenizer.to_str()
    tasks = [(seed, i, length, spec) for length, count in rows.items() for i in range(-(-count // SHARD))]
    if processes <= 1:
        shards = [_shard(t) for t in tasks]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as workers:
            shards = workers.map(_shard, tasks, chunksize=1)
    return {n: join([s for t, s in zip(tasks, shards, strict=True) if t[2] == n]) for n in rows}
