"""Counter-based randomness: a word of noise is a function of where it is used, and of nothing else.

Philox-4x32-10 (Salmon et al., SC 2011). The key is the request's 64-bit seed; the counter is
    c0 = index // 4 (a block; index % 4 picks its word), c1 = position, c2 = step, c3 = canvas * 4 + purpose
so canvases count up to 2^30 and everything else up to 2^32. The torch form and the Triton form give identical
words. It knows no logits, no slots and no global generator; `derive_seed` gives each of many requests a seed.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from dgen.jit import has_triton, jit, require_triton, tl, triton
from dgen.sampler.chunks import MAX_VOCAB

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a word is drawn for: streams of different purposes never share a counter."""

    INIT = 0
    RENOISE = 1
    DRAW_CHUNK = 2
    DRAW_WITHIN = 3


@dataclass(frozen=True, slots=True)
class Places:
    """Where n rows take their noise from: four int64 tensors [n]."""

    seed: Tensor
    canvas: Tensor
    step: Tensor
    position: Tensor

    def at(self, rows: slice) -> Places:
        """The places of a tile of rows."""
        return Places(*(getattr(self, f)[rows] for f in self.__slots__))


def as_int64(values: Tensor | None) -> Tensor | None:
    """Coordinates as the kernels read them."""
    return None if values is None else values.long().contiguous()


def given_seeds(
    rows: int, requests: int, canvas_len: int, row_seeds: Tensor | None
) -> tuple[Tensor | None, int]:
    """Seeds that were given, one per request or per row, and how many neighbouring rows share one."""
    if row_seeds is None:
        return None, canvas_len
    if row_seeds.numel() not in (rows, requests):
        raise ValueError(f"row_seeds must hold {requests} or {rows} seeds, got {row_seeds.numel()}")
    return as_int64(row_seeds), 1 if row_seeds.numel() == rows else canvas_len


def places_of_rows(
    rows: int,
    canvas_len: int,
    seed: int,
    row_seeds: Tensor | None,
    canvases: Tensor | None,
    steps: Tensor | None,
    device: torch.device,
) -> Places:
    """Where each row of logits takes its noise from; see `sample_row_stats` for the defaults."""
    row = torch.arange(rows, device=device)
    request = row // canvas_len
    seeds, rows_per_seed = given_seeds(rows, -(-rows // canvas_len), canvas_len, row_seeds)
    if seeds is None:
        seeds = torch.full_like(request, seed_to_int64(seed))
    return Places(
        seed=seeds[row // rows_per_seed],
        canvas=request if canvases is None else canvases.long()[request],
        step=torch.zeros_like(request) if steps is None else steps.long()[request],
        position=row % canvas_len,
    )


def seed_to_int64(seed: int) -> int:
    """Map any Python integer to the signed 64-bit value with the same low 64 bits."""
    low = seed & _MASK64
    return low - (1 << 64) if low >> 63 else low


def derive_seed(seed: int, index: int) -> int:
    """Seed of request `index` among many requests under one seed.

    Index 0 is the seed itself, so a lone request is the first of a batch. The others are 63 bits of
    splitmix64 (Steele et al., OOPSLA 2014) over the mixed seed and the index: they fit a signed 64-bit
    tensor.
    """
    if index == 0:
        return seed
    return _splitmix64((_splitmix64(seed & _MASK64) + index * _GOLDEN) & _MASK64) >> 1


def _splitmix64(state: int) -> int:
    z = (state + _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def philox(
    seed: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words of Philox-4x32-10, as int64 tensors of the broadcast shape with values in [0, 2^32).

    seed is int64 (its 64 bits are the key, low word first); the counters are int64, 32 bits used.
    """
    k0, k1 = seed & _MASK32, (seed >> 32) & _MASK32
    c0, c1, c2, c3 = (c & _MASK32 for c in (c0, c1, c2, c3))
    for _ in range(10):
        # The signed product wraps and its shift sign-extends: the mask leaves the true high word.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((p1 >> 32) & _MASK32) ^ c1 ^ k0, p1 & _MASK32
        c2, c3 = ((p0 >> 32) & _MASK32) ^ c3 ^ k1, p0 & _MASK32
        k0, k1 = (k0 + 0x9E3779B9) & _MASK32, (k1 + 0xBB67AE85) & _MASK32
    return c0, c1, c2, c3


def words(places: Places, *, purpose: Purpose, count: int) -> Tensor:
    """Words 0 .. count-1 at each of n places: int64 [n, count], values in [0, 2^32)."""
    block = torch.arange((count + 3) // 4, device=places.seed.device)[None, :]
    c3 = places.canvas[:, None] * 4 + int(purpose)
    four = philox(places.seed[:, None], block, places.position[:, None], places.step[:, None], c3)
    return torch.stack(torch.broadcast_tensors(*four), dim=-1).flatten(1)[:, :count]


def gumbel(word: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32, from 32-bit words (int64): never inf, never NaN, in [-3.14, 22.88].

    With u = (word + 1/2) / 2^32, inside (0, 1) for every word, it is -log(-log(1 - u)). The tail that decides
    draws
    is where u is tiny: there -log(1 - u) is a series in u, so that all 32 bits count; elsewhere 1 - u is
    formed from the complement of the word, since u itself has rounded.
    """
    u = (word.to(torch.float32) + 0.5) * 2.0**-32
    complement = ((word ^ _MASK32).to(torch.float32) + 0.5) * 2.0**-32
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    return -torch.log(torch.where(u < 0.0625, series, -torch.log(complement)))


def random_ids_reference(
    seeds: Tensor, canvases: Tensor, steps: Tensor, *, canvas_len: int, vocab_size: int, purpose: Purpose
) -> Tensor:
    """The torch form of `random_ids`: the same ids, on any device."""
    _check_vocab(vocab_size)
    position = torch.arange(canvas_len, device=seeds.device)[None, :]
    c3 = canvases.long()[:, None] * 4 + int(purpose)
    low, high, _, _ = philox(
        seeds.long()[:, None], torch.zeros_like(position), position, steps.long()[:, None], c3
    )
    return (high * vocab_size + ((low * vocab_size) >> 32)) >> 32


def random_ids(
    seeds: Tensor, canvases: Tensor, steps: Tensor, *, canvas_len: int, vocab_size: int, purpose: Purpose
) -> Tensor:
    """Uniform ids of the whole vocabulary for m canvases: int64 tensors [m] -> int64 [m, canvas_len].

    A 64-bit word times the vocabulary size, high half kept: no id is likelier than another by more than
    2^-64. One Triton kernel on CUDA (the torch form is a hundred launches), `random_ids_reference` elsewhere.
    """
    form = launch_random_ids if seeds.is_cuda and has_triton() else random_ids_reference
    return form(seeds, canvases, steps, canvas_len=canvas_len, vocab_size=vocab_size, purpose=purpose)


def launch_random_ids(
    seeds: Tensor, canvases: Tensor, steps: Tensor, *, canvas_len: int, vocab_size: int, purpose: Purpose
) -> Tensor:
    """The Triton form of `random_ids`, where kernels can run."""
    _check_vocab(vocab_size)
    require_triton(seeds.device)
    ids = torch.empty(len(seeds), canvas_len, dtype=torch.int64, device=seeds.device)
    if ids.numel() > 0:
        _random_ids_kernel[(len(seeds),)](
            seeds.long().contiguous(), canvases.long().contiguous(), steps.long().contiguous(), ids,
            canvas_len, vocab_size,
            PURPOSE=int(purpose), BLOCK=triton.next_power_of_2(canvas_len), num_warps=4,
        )  # fmt: skip
    return ids


def _check_vocab(vocab_size: int) -> None:
    if not 0 < vocab_size <= MAX_VOCAB:
        raise ValueError(f"vocab_size must be in [1, {MAX_VOCAB}], got {vocab_size}")


@jit
def _random_ids_kernel(
    seeds_ptr, canvases_ptr, steps_ptr, ids_ptr, canvas_len, vocab_size,
    PURPOSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One canvas."""
    m = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, BLOCK)
    seed, canvas, step = tl.load(seeds_ptr + m), tl.load(canvases_ptr + m), tl.load(steps_ptr + m)
    low, high, _, _ = noise_block(seed, canvas, step, position, PURPOSE, position * 0)
    low, high = low.to(tl.int64), high.to(tl.int64)
    ids = (high * vocab_size + ((low * vocab_size) >> 32)) >> 32
    tl.store(ids_ptr + m * canvas_len + position, ids, mask=position < canvas_len)


@jit
def noise_block(seed, canvas, step, position, purpose: tl.constexpr, block):
    """The four words (uint32) of each `block` (int32 tensor); the other coordinates broadcast against it."""
    zero = block * 0
    c0, c1, c2 = block.to(tl.uint32), (zero + position).to(tl.uint32), (zero + step).to(tl.uint32)
    c3 = (zero + canvas * 4 + purpose).to(tl.uint32)
    return tl.philox(seed, c0, c1, c2, c3)


@jit
def noise_words(seed, canvas, step, position, purpose: tl.constexpr, index):
    """Word `index` (int32 tensor) at one place, uint32; the place's coordinates are int64 scalars."""
    w0, w1, w2, w3 = noise_block(seed, canvas, step, position, purpose, index >> 2)
    word = index & 3
    return tl.where(word == 0, w0, tl.where(word == 1, w1, tl.where(word == 2, w2, w3)))


@jit
def noise_row(seed, canvas, step, position, purpose: tl.constexpr, COUNT: tl.constexpr):
    """Words 0 .. COUNT - 1 (a power of 2, at least 4) at one place: what `noise_words` gives, a quarter of its work."""
    w0, w1, w2, w3 = noise_block(seed, canvas, step, position, purpose, tl.arange(0, COUNT // 4))
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [COUNT])


@jit
def noise_gumbel(word):
    """The Triton form of `gumbel`: uint32 words -> fp32."""
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    complement = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * (0.25 + u * (0.2 + u * (1.0 / 6))))))
    return -tl.log(tl.where(u < 0.0625, series, -tl.log(complement)))
