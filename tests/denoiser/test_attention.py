"""Attention over a slot's ring and the pass's own rows, in one product or two, against a plain softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from close import assert_close
from tiles import WIDE

from dgen.denoiser.cache import capacity
from dgen.denoiser.kernels.attention import Tiles, attend, write_cache
from dgen.denoiser.kernels.softmax import NO_WINDOW
from dgen.denoiser.kernels.wide_attention import WideTiles, attend_wide, wide_span

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
WINDOW = 20
LENGTHS = (0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)
SLOTS = (3, 0, 6, 5, 1, 4, 2)  # in any order; the sixth is the spare one
FEW_SLOTS = (6, 4, 2)

RING_UNIT = WIDE.keys  # a multiple of every shape's keys here
ONE = Tiles(rows=16, keys=16, warps=4, stages=1, splits=1)
LOOSE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}  # the exponentials are rounded too


@dataclass
class Pass:
    """A pass of m sequences of n rows over slots with prefixes of their own, and what a ring keeps of those."""

    n: int
    q_heads: int
    window: int
    qkv: torch.Tensor
    prefixes: list[tuple[torch.Tensor, torch.Tensor]]
    cache: tuple[torch.Tensor, torch.Tensor]
    slots: torch.Tensor
    lengths: torch.Tensor
    scale: float = 0.37

    @classmethod
    def drawn(
        cls, draw, dtype, *, n, heads, size, window, lengths=LENGTHS, slots=SLOTS, spare_rows=0
    ) -> Pass:
        q_heads, kv_heads = heads
        rows = capacity(window, max(*lengths, 1), unit=RING_UNIT)
        prefixes, rings = [], [[], []]
        for length in lengths:
            pair = [draw(length, kv_heads, size, dtype=dtype) for _ in range(2)]
            prefixes.append(tuple(pair))
            for kept, full in zip(rings, pair, strict=True):
                # What no position has reached holds NaN, and so does the room behind the last position.
                ring = full.new_full((kv_heads, rows + spare_rows, size), float("nan"))
                for p in range(max(0, length - ring.shape[1]), length):
                    ring[:, p % ring.shape[1]] = full[p]
                kept.append(ring)
        qkv = draw(len(slots) * n, q_heads + 2 * kv_heads, size, dtype=dtype)
        return cls(
            n,
            q_heads,
            window,
            qkv,
            prefixes,
            (torch.stack(rings[0]), torch.stack(rings[1])),
            torch.tensor(slots, device=qkv.device),
            torch.tensor([*lengths, 0], device=qkv.device),
        )

    def want(self, *, causal: bool) -> torch.Tensor:
        """Row by row, over lists: what the words of `attend` say."""
        kv_heads = self.cache[0].shape[1]
        group = self.q_heads // kv_heads
        out = []
        for place, slot in enumerate(self.slots.tolist()):
            length = int(self.lengths[slot])
            q, k, v = (
                self.qkv[place * self.n : (place + 1) * self.n]
                .double()
                .split([self.q_heads, kv_heads, kv_heads], dim=1)
            )
            if slot < len(self.prefixes):
                k = torch.cat([self.prefixes[slot][0].double(), k])
                v = torch.cat([self.prefixes[slot][1].double(), v])
            key = torch.arange(len(k), device=k.device)
            row = length + torch.arange(self.n, device=k.device)[:, None]
            if causal:
                seen = (key <= row) & (key > row - self.window)
            else:
                seen = key > length - self.window
                seen = seen.expand(self.n, -1)
            for i in range(self.n):
                kept = seen[i].nonzero()[:, 0]
                keys, values = (x[kept].repeat_interleave(group, dim=1) for x in (k, v))
                p = (torch.einsum("hd,khd->hk", q[i], keys) * self.scale).softmax(-1)
                out.append(torch.einsum("hk,khd->hd", p, values).flatten())
        return torch.stack(out)

    def run(self, tiles: Tiles | WideTiles, *, causal: bool, groups: int = 1) -> torch.Tensor:
        width = self.qkv.shape[-1]
        out = self.qkv.new_full((len(self.qkv), self.q_heads * width), float("nan"))
        parts = torch.empty(
            len(self.qkv) * self.q_heads * tiles.splits * (width + 2) + 64, device=self.qkv.device
        )
        parts[-64:] = 7.0
        numbers: dict[str, Any] = {
            "n": self.n,
            "q_heads": self.q_heads,
            "window": self.window,
            "causal": causal,
            "scale": self.scale,
        }
        if isinstance(tiles, Tiles):
            attend(self.qkv, self.cache, self.slots, self.lengths, out, tiles=tiles, parts=parts, **numbers)
            return out
        kv_heads, capacity = self.cache[0].shape[1:3]
        span = wide_span(capacity, self.window, self.n, tiles)
        row_tiles = -(-self.n * self.q_heads // kv_heads // tiles.rows) * kv_heads * len(self.slots)
        entries = -(-row_tiles // groups) * tiles.rows * span
        # Exactly what is promised to suffice, with marks behind it.
        weights = torch.empty(entries + 64, dtype=self.qkv.dtype, device=self.qkv.device)
        tops = torch.empty(entries // tiles.keys + 64, device=self.qkv.device)
        moves = torch.full(
            (-(-row_tiles // groups) * tiles.splits + 64,), 7, dtype=torch.int32, device=tops.device
        )
        weights[entries:], tops[entries // tiles.keys :] = 7.0, 7.0
        attend_wide(
            self.qkv,
            self.cache,
            self.slots,
            self.lengths,
            out,
            tiles=tiles,
            weights=weights[:entries],
            tops=tops[: entries // tiles.keys],
            moves=moves[:-64],
            parts=parts,
            **numbers,
        )
        assert (weights[entries:] == 7.0).all(), "exponentials ran over their buffer"
        assert (tops[entries // tiles.keys :] == 7.0).all(), "maxima ran over their buffer"
        assert (moves[-64:] == 7).all(), "moves ran over their buffer"
        return out


CASES = {
    # name: rows of a pass, (q heads, kv heads), head size, window
    "canvas": (5, (4, 2), 16, WINDOW),
    "longer than its window": (WINDOW + 9, (2, 1), 16, WINDOW),
    "groups of three, odd sizes": (7, (6, 2), 24, WINDOW),
    "no window": (6, (4, 1), 20, NO_WINDOW),
    "one row": (1, (2, 2), 40, WINDOW),
}


KINDS = ("whole", "split", "wide", "wide split")
FEW = [  # every case, every kind both ways; all of them together would take the interpreter a minute
    ("canvas", "whole", True),
    ("canvas", "whole", False),
    ("canvas", "wide", True),
    ("canvas", "wide split", False),
    ("longer than its window", "whole", True),
    ("longer than its window", "wide split", True),
    ("groups of three, odd sizes", "split", True),
    ("groups of three, odd sizes", "wide", False),
    ("no window", "split", False),
    ("no window", "wide", True),
    ("one row", "whole", False),
]


@pytest.mark.parametrize(("case", "kind", "causal"), FEW)
def test_rows_see_their_prefix_and_their_pass(draw, dtype, case, kind, causal):
    n, heads, size, window = CASES[case]
    tiles: Tiles | WideTiles = WIDE if "wide" in kind else ONE
    tiles = replace(tiles, splits={"split": 2, "wide split": 4}.get(kind, 1))
    slots = SLOTS if n < WINDOW else (3, 6, 5)
    made = Pass.drawn(draw, dtype, n=n, heads=heads, size=size, window=window, slots=slots)
    assert_close(made.run(tiles, causal=causal), made.want(causal=causal), LOOSE[dtype])


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("tiles", [ONE, WIDE], ids=["whole", "wide"])
def test_the_narrowest_windows(draw, dtype, tiles, window):
    made = Pass.drawn(
        draw, dtype, n=4, heads=(2, 1), size=16, window=window, lengths=(0, 1, 5), slots=(2, 1, 0)
    )
    for causal in (True, False):
        assert_close(made.run(tiles, causal=causal), made.want(causal=causal), LOOSE[dtype])


@pytest.mark.parametrize("tiles", [ONE, replace(ONE, splits=2), WIDE, replace(WIDE, splits=2)], ids=KINDS)
def test_scores_far_apart_neither_overflow_nor_leak(draw, dtype, tiles):
    made = Pass.drawn(draw, dtype, n=4, heads=(2, 1), size=16, window=WINDOW, lengths=(40,), slots=(0,))
    made.scale = 400.0
    assert_close(
        made.run(tiles, causal=True), made.want(causal=True), 2e-2 if dtype != torch.float32 else 1e-4
    )


@pytest.mark.parametrize("tiles", [ONE, WIDE], ids=["whole", "wide"])
@pytest.mark.parametrize("length", [WIDE.keys + 1, WIDE.keys + WIDE.value_keys - 1])
def test_a_cache_may_end_within_a_tile_of_keys(draw, dtype, tiles, length):
    """The slot before holds NaN, as does all that no position has reached."""
    made = Pass.drawn(
        draw, dtype, n=4, heads=(2, 1), size=16, window=NO_WINDOW, lengths=(0, length), slots=(1, 0)
    )
    for causal in (True, False):
        assert_close(made.run(tiles, causal=causal), made.want(causal=causal), LOOSE[dtype])


@pytest.mark.parametrize("tiles", [ONE, WIDE], ids=["whole", "wide"])
@pytest.mark.parametrize("length", [1, 40])
def test_a_key_that_is_no_number_makes_none_of_whoever_sees_it(draw, dtype, tiles, length):
    made = Pass.drawn(
        draw, dtype, n=4, heads=(2, 1), size=16, window=NO_WINDOW, lengths=(length, length), slots=(0, 1)
    )
    made.cache[0][0, :, 0] = float("nan")  # its value is a number
    for causal in (True, False):
        got = made.run(tiles, causal=causal)
        assert got[:4].isnan().all()
        assert not got[4:].isnan().any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("splits", [1, 4], ids=["whole", "split"])
@pytest.mark.parametrize("shape", [ONE, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("height", [-400.0, -130.0, -60.0, 60.0, 110.0, 400.0])
def test_scores_of_any_height_are_compared_with_each_other_alone(draw, dtype, shape, splits, causal, height):
    """One row's scores all lie about `height` (of base 2), beside rows of usual ones; some splits have no key."""
    made = Pass.drawn(draw, dtype, n=5, heads=(2, 1), size=16, window=WINDOW, lengths=(0, 9), slots=(1, 0))
    made.qkv *= 0.5
    q, k = made.qkv[:, :2], made.qkv[:, 2]
    for keys in (k, made.cache[0], *(prefix[0] for prefix in made.prefixes)):
        keys[..., 0] = 1.0  # a row's first entry shifts its scores
    q[2, 1, 0] = height / made.scale / 1.442695
    made.prefixes = [(keys, values) for keys, values in made.prefixes]
    tiles = replace(shape, splits=splits)
    got, want = made.run(tiles, causal=causal), made.want(causal=causal)
    assert_close(got, want, LOOSE[dtype] if dtype != torch.float32 else 1e-5)


@pytest.mark.parametrize("splits", [1, 2])
def test_rows_in_groups_are_rows_at_once_to_the_bit(draw, dtype, splits):
    made = Pass.drawn(draw, dtype, n=9, heads=(4, 2), size=16, window=WINDOW, slots=(2, 6))
    tiles = replace(WIDE, splits=splits)
    at_once = made.run(tiles, causal=False)
    assert torch.equal(made.run(tiles, causal=False, groups=3), at_once)


@pytest.mark.parametrize("tiles", [ONE, WIDE], ids=["whole", "wide"])
def test_a_roomier_ring_gives_the_same(draw, dtype, tiles):
    made = Pass.drawn(
        draw, dtype, n=5, heads=(2, 1), size=16, window=WINDOW, slots=(5, 1, 4), spare_rows=RING_UNIT
    )
    for causal in (True, False):
        assert_close(made.run(tiles, causal=causal), made.want(causal=causal), LOOSE[dtype])


@pytest.mark.parametrize("tiles", [ONE, replace(ONE, splits=2), WIDE, replace(WIDE, splits=2)], ids=KINDS)
def test_a_slot_sees_nothing_of_another(draw, dtype, tiles):
    made = Pass.drawn(draw, dtype, n=5, heads=(2, 1), size=16, window=WINDOW, slots=FEW_SLOTS)
    before = made.run(tiles, causal=False).view(len(FEW_SLOTS), -1)
    place = FEW_SLOTS.index(4)
    made.cache[0][4], made.cache[1][4] = float("nan"), float("nan")
    made.qkv[place * 5 : place * 5 + 5] = float("nan")
    after = made.run(tiles, causal=False).view(len(FEW_SLOTS), -1)
    others = [p for p in range(len(FEW_SLOTS)) if p != place]
    assert torch.equal(after[others], before[others])
    assert after[place].isnan().all()


@pytest.mark.parametrize("n", [1, 5, WINDOW - 1, WINDOW, 2 * WINDOW + 3])
@pytest.mark.parametrize("size", [16, 20])
@pytest.mark.parametrize("padding", [0, 1, WINDOW])
def test_a_pass_is_appended_to_the_ring_and_padding_is_not(draw, dtype, n, size, padding):
    made = Pass.drawn(draw, dtype, n=n, heads=(4, 2), size=size, window=WINDOW)
    want = [side.clone() for side in made.cache]
    capacity = want[0].shape[2]
    for place, slot in enumerate(SLOTS):
        if slot == len(LENGTHS):
            continue
        for i in range(n - padding):
            row = made.qkv[place * n + i]
            at = (LENGTHS[slot] + i) % capacity
            want[0][slot, :, at], want[1][slot, :, at] = row[4:6], row[6:8]
    # One ring more stands behind the last: the spare slot's, if it had one.
    behind = [torch.cat([side, torch.full_like(side[:1], 7.0)]) for side in made.cache]
    write_cache(
        made.qkv,
        (behind[0][:-1], behind[1][:-1]),
        made.slots,
        made.lengths,
        torch.full_like(made.slots, n - padding),
        n=n,
        q_heads=made.q_heads,
    )
    for got, expected in zip(behind, want, strict=True):
        assert torch.equal(got[:-1].nan_to_num(9.0), expected.nan_to_num(9.0))
        assert (got[-1] == 7.0).all(), "the spare slot wrote"
