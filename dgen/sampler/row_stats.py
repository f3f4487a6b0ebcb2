"""Argmax, draw, entropy and softmax of each row of logits, in one function.

The law: one argmax, taken before the temperature; a Gumbel-max draw whose noise depends on (seed, canvas,
step, position) alone; entropy of the tempered distribution; a row that defines no distribution says so (-1,
NaN) instead of naming a token. The draw is made in two levels, a chunk by its log-sum-exp and then an id
within it, which is the same distribution with far less noise (docs/sampler.md). It knows rows and nothing
above them.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import torch
from torch import Tensor

from dgen.sampler import noise
from dgen.sampler.chunks import (
    CHUNK,
    MIN_TEMPERATURE,
    capped,
    chunk_softmax,
    first_argmax,
    first_index,
    is_bad,
    load_capped,
    merge_softmax,
    row_tiles,
    shape_of,
    take,
)
from dgen.sampler.jit import jit, require_triton, tl, triton
from dgen.sampler.noise import noise_gumbel, noise_words

RowStats = tuple[Tensor, Tensor, Tensor, Tensor | None]

_CHUNKS_PER_PROGRAM = 4
_WRITE_TILE = 4096


@jit
def _row_stats_split_kernel(
    logits_ptr, row_stride, temps_ptr, top_ptr, total_ptr, drift_ptr, argmax_ptr,
    vocab_size, chunks, canvas_len, min_temperature, softcap,
    HAS_CAP: tl.constexpr, CHUNK: tl.constexpr, PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Statistics of PER_PROGRAM neighbouring chunks of one row, each chunk around its own maximum."""
    splits = tl.cdiv(chunks, PER_PROGRAM)
    row = (tl.program_id(0) // splits).to(tl.int64)
    chunk = (tl.program_id(0) % splits) * PER_PROGRAM + tl.arange(0, PER_PROGRAM)
    index = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    x = load_capped(logits_ptr + row * row_stride, index, index < vocab_size, softcap, HAS_CAP)
    inv_t = 1.0 / tl.maximum(tl.load(temps_ptr + row // canvas_len), min_temperature)
    top, total, drift = chunk_softmax(x, inv_t)
    argmax = tl.min(tl.where(x == top[:, None], index, vocab_size - 1), axis=1)
    at, inside = row * chunks + chunk, chunk < chunks
    tl.store(top_ptr + at, top, mask=inside)
    tl.store(total_ptr + at, total, mask=inside)
    tl.store(drift_ptr + at, drift, mask=inside)
    tl.store(argmax_ptr + at, argmax, mask=inside)


@jit
def _row_stats_merge_kernel(
    logits_ptr, row_stride, temps_ptr, top_ptr, total_ptr, drift_ptr, argmax_ptr,
    seeds_ptr, canvases_ptr, steps_ptr,
    out_argmax_ptr, out_sample_ptr, out_entropy_ptr, out_top_ptr, out_inv_total_ptr,
    vocab_size, chunks, canvas_len, rows_per_seed, min_temperature, softcap,
    DRAW_CHUNK: tl.constexpr, DRAW_WITHIN: tl.constexpr,
    HAS_CAP: tl.constexpr, CHUNK: tl.constexpr, CHUNK_BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: merge its chunks, draw a chunk by log-sum-exp, then an id within it."""
    row = tl.program_id(0).to(tl.int64)
    request, position = row // canvas_len, row % canvas_len
    temp = tl.load(temps_ptr + request)
    inv_t = 1.0 / tl.maximum(temp, min_temperature)
    seed = tl.load(seeds_ptr + row // rows_per_seed)
    canvas, step = tl.load(canvases_ptr + request), tl.load(steps_ptr + request)

    chunk = tl.arange(0, CHUNK_BLOCK)
    inside = chunk < chunks
    top = tl.load(top_ptr + row * chunks + chunk, mask=inside, other=float("-inf"))
    total = tl.load(total_ptr + row * chunks + chunk, mask=inside, other=0.0)
    drift = tl.load(drift_ptr + row * chunks + chunk, mask=inside, other=0.0)
    chunk_argmax = tl.load(argmax_ptr + row * chunks + chunk, mask=inside, other=0)
    bad, row_top, d, row_total, row_drift = merge_softmax(top, total, drift, inv_t)
    argmax = take(chunk_argmax, chunk, first_index(top == row_top, chunk, chunks - 1))

    word = noise_words(seed, canvas, step, position, DRAW_CHUNK, chunk)
    key = tl.where(d > float("-inf"), tl.log(tl.where(total > 0, total, 1.0)) + d, d) + noise_gumbel(word)
    drawn = first_index(key == tl.max(key, axis=0), chunk, chunks - 1)
    drawn_top = take(top, chunk, drawn)
    lane = tl.arange(0, CHUNK)
    index = drawn * CHUNK + lane
    x = load_capped(logits_ptr + row * row_stride, index, index < vocab_size, softcap, HAS_CAP)
    word = noise_words(seed, canvas, step, position, DRAW_WITHIN, lane)
    key = (x - drawn_top) * inv_t + noise_gumbel(word)
    sample = first_index(key == tl.max(key, axis=0), index, vocab_size - 1)

    entropy = tl.log(row_total) - row_drift / row_total
    tl.store(out_argmax_ptr + row, tl.where(bad, -1, argmax))
    tl.store(out_sample_ptr + row, tl.where(bad, -1, tl.where(temp > 0, sample, argmax)))
    tl.store(out_entropy_ptr + row, tl.where(bad, float("nan"), entropy))
    tl.store(out_top_ptr + row, row_top)
    tl.store(out_inv_total_ptr + row, tl.where(bad, 0.0, 1.0 / row_total))


@jit
def _row_stats_softmax_kernel(
    logits_ptr, row_stride, temps_ptr, top_ptr, inv_total_ptr, probs_ptr,
    vocab_size, canvas_len, min_temperature, softcap,
    HAS_CAP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """softmax(logits / T) of one tile of one row, zeros for a bad row."""
    tiles = tl.cdiv(vocab_size, TILE)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    index = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    inside = index < vocab_size
    x = load_capped(logits_ptr + row * row_stride, index, inside, softcap, HAS_CAP)
    inv_t = 1.0 / tl.maximum(tl.load(temps_ptr + row // canvas_len), min_temperature)
    inv_total = tl.load(inv_total_ptr + row)
    d = tl.minimum(x - tl.load(top_ptr + row), 0.0)  # x may round differently from its own maximum elsewhere
    p = tl.where(inv_total > 0, tl.exp(d * inv_t) * inv_total, 0.0)
    tl.store(probs_ptr + row * vocab_size + index, p.to(probs_ptr.dtype.element_ty), mask=inside)


def sample_row_stats(
    logits: Tensor,
    temps: Tensor,
    canvas_len: int,
    seed: int,
    probs_dtype: torch.dtype | None,
    *,
    softcap: float | None = None,
    row_seeds: Tensor | None = None,
    canvases: Tensor | None = None,
    steps: Tensor | None = None,
) -> RowStats:
    """Argmax, draw, entropy and softmax of each row, by Triton kernels.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16, any row stride. Row i is position i % canvas_len of request
            i // canvas_len. -inf is a masked token.
        temps: [m], m = rows / canvas_len; clamped to 1e-10, and 0 makes the draw the argmax.
        seed: any integer (its low 64 bits), for all rows, unless `row_seeds` is given.
        probs_dtype: dtype of the softmax, or None for no softmax.
        softcap: cap in cap * tanh(logits / cap), in fp32, before everything else.
        row_seeds: int64, one per request [m] or one per row [rows].
        canvases, steps: int64 [m], the noise's coordinates; without them request i has canvas i and step 0.

    Returns:
        argmax int64 [rows] of the soft-capped logits before T (equal logits: the lower id), draw int64 [rows]
        from softmax(logits / T), entropy in nats fp32 [rows], softmax(logits / T) [rows, vocab] or None. A
        row with a NaN, a +inf or no finite logit has argmax = draw = -1, entropy NaN and a softmax of zeros.
    """
    require_triton(logits.device)
    rows, vocab_size = shape_of(logits)
    if logits.stride(1) != 1 and vocab_size > 1:
        logits = logits.contiguous()
    device = logits.device
    argmax, sample, entropy, probs = _results(logits, probs_dtype)
    if rows == 0:
        return argmax, sample, entropy, probs
    requests = -(-rows // canvas_len)
    temps = temps.to(device=device, dtype=torch.float32).contiguous()
    seeds, rows_per_seed = _seeds(rows, requests, canvas_len, seed, row_seeds, device)
    canvases = (torch.arange(requests, device=device) if canvases is None else canvases).long().contiguous()
    steps = (torch.zeros_like(canvases) if steps is None else steps).long().contiguous()
    chunks = -(-vocab_size // CHUNK)
    top, total, drift = torch.empty(3, rows, chunks, dtype=torch.float32, device=device)
    chunk_argmax = torch.empty(rows, chunks, dtype=torch.int32, device=device)
    row_top, row_inv_total = torch.empty(2, rows, dtype=torch.float32, device=device)
    cap, has_cap = (1.0, False) if softcap is None else (float(softcap), True)
    chunked = (top, total, drift, chunk_argmax)
    per_program = min(_CHUNKS_PER_PROGRAM, triton.next_power_of_2(chunks))
    _row_stats_split_kernel[(rows * triton.cdiv(chunks, per_program),)](
        logits, logits.stride(0), temps, *chunked, vocab_size, chunks, canvas_len, MIN_TEMPERATURE, cap,
        HAS_CAP=has_cap, CHUNK=CHUNK, PER_PROGRAM=per_program, num_warps=4,
    )  # fmt: skip
    _row_stats_merge_kernel[(rows,)](
        logits, logits.stride(0), temps, *chunked, seeds, canvases, steps,
        argmax, sample, entropy, row_top, row_inv_total,
        vocab_size, chunks, canvas_len, rows_per_seed, MIN_TEMPERATURE, cap,
        DRAW_CHUNK=int(noise.Purpose.DRAW_CHUNK), DRAW_WITHIN=int(noise.Purpose.DRAW_WITHIN),
        HAS_CAP=has_cap, CHUNK=CHUNK, CHUNK_BLOCK=triton.next_power_of_2(chunks), num_warps=4,
    )  # fmt: skip
    if probs is not None:
        tile = min(_WRITE_TILE, triton.next_power_of_2(vocab_size))
        _row_stats_softmax_kernel[(rows * triton.cdiv(vocab_size, tile),)](
            logits, logits.stride(0), temps, row_top, row_inv_total, probs,
            vocab_size, canvas_len, MIN_TEMPERATURE, cap, HAS_CAP=has_cap, TILE=tile, num_warps=4,
        )  # fmt: skip
    return argmax, sample, entropy, probs


def sample_row_stats_reference(
    logits: Tensor,
    temps: Tensor,
    canvas_len: int,
    probs_dtype: torch.dtype | None,
    *,
    seed: int = 0,
    softcap: float | None = None,
    row_seeds: Tensor | None = None,
    canvases: Tensor | None = None,
    steps: Tensor | None = None,
) -> RowStats:
    """The torch form of `sample_row_stats`: same meaning, same noise, any device."""
    rows, vocab_size = shape_of(logits)
    places = _places(rows, canvas_len, seed, row_seeds, canvases, steps, logits.device)
    argmax, sample, entropy, probs = _results(logits, probs_dtype)
    t_rows = temps.to(torch.float32)[torch.arange(rows, device=logits.device) // canvas_len]
    for tile in row_tiles(rows, vocab_size):
        x, t = capped(logits[tile], softcap), t_rows[tile]
        bad = is_bad(x)
        top = first_argmax(x)
        # The maximum stays in raw units: at T = 0 x / T would overflow, a difference goes to -inf at worst.
        scaled = (x - x.amax(dim=-1, keepdim=True)) / t.clamp(min=MIN_TEMPERATURE)[:, None]
        e = torch.exp(scaled)
        z = e.sum(dim=-1)
        drift = torch.where(e > 0, scaled * e, 0.0).sum(dim=-1)
        drawn = torch.where(t > 0, _draw(scaled, places.at(tile)), top)
        argmax[tile] = top.masked_fill(bad, -1)
        sample[tile] = drawn.masked_fill(bad, -1)
        entropy[tile] = (z.log() - drift / z).masked_fill(bad, float("nan"))
        if probs is not None:
            probs[tile] = (e / z[:, None]).masked_fill(bad[:, None], 0.0).to(probs.dtype)
    return argmax, sample, entropy, probs


def _draw(scaled: Tensor, places: noise.Places) -> Tensor:
    """Two-level Gumbel-max over scaled logits [n, V] (differences from the maximum, over T) -> int64 [n]."""
    rows, vocab_size = scaled.shape
    chunks = -(-vocab_size // CHUNK)
    padded = torch.nn.functional.pad(scaled, (0, chunks * CHUNK - vocab_size), value=float("-inf"))
    by_chunk = padded.view(rows, chunks, CHUNK)
    words = noise.words(places, purpose=noise.Purpose.DRAW_CHUNK, count=chunks)
    chunk = first_argmax(by_chunk.logsumexp(dim=-1) + noise.gumbel(words))
    within = by_chunk[torch.arange(rows, device=scaled.device), chunk][:, : min(CHUNK, vocab_size)]
    words = noise.words(places, purpose=noise.Purpose.DRAW_WITHIN, count=within.shape[-1])
    return chunk * CHUNK + first_argmax(within + noise.gumbel(words))


def _results(logits: Tensor, probs_dtype: torch.dtype | None) -> RowStats:
    """Fresh tensors for the four results."""
    rows, device = len(logits), logits.device
    argmax, sample = torch.empty(2, rows, dtype=torch.int64, device=device)
    entropy = torch.empty(rows, dtype=torch.float32, device=device)
    probs = None if probs_dtype is None else torch.empty(logits.shape, dtype=probs_dtype, device=device)
    return argmax, sample, entropy, probs


def _seeds(
    rows: int, requests: int, canvas_len: int, seed: int, row_seeds: Tensor | None, device: torch.device
) -> tuple[Tensor, int]:
    """The seeds as a contiguous int64 tensor, and how many neighbouring rows share one."""
    if row_seeds is None:
        signed = noise.seed_to_int64(seed)
        return torch.full((requests,), signed, dtype=torch.int64, device=device), canvas_len
    if row_seeds.numel() not in (rows, requests):
        raise ValueError(f"row_seeds must hold {requests} or {rows} seeds, got {row_seeds.numel()}")
    return row_seeds.long().contiguous(), 1 if row_seeds.numel() == rows else canvas_len


def _places(
    rows: int,
    canvas_len: int,
    seed: int,
    row_seeds: Tensor | None,
    canvases: Tensor | None,
    steps: Tensor | None,
    device: torch.device,
) -> noise.Places:
    """Where each row's noise is taken from; see `sample_row_stats` for the defaults."""
    row = torch.arange(rows, device=device)
    request = row // canvas_len
    seeds, rows_per_seed = _seeds(rows, -(-rows // canvas_len), canvas_len, seed, row_seeds, device)
    return noise.Places(
        seed=seeds[row // rows_per_seed],
        canvas=request if canvases is None else canvases.long()[request],
        step=torch.zeros_like(request) if steps is None else steps.long()[request],
        position=row % canvas_len,
    )
