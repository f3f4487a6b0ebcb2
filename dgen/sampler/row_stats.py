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

from dgen.jit import jit, jit_for_any, require_triton, tl, triton
from dgen.sampler import noise
from dgen.sampler.chunks import (
    CHUNK,
    MIN_TEMPERATURE,
    cap_raw,
    capped,
    capped_chunk_softmax,
    chunk_max,
    chunk_softmax,
    first_argmax,
    first_index,
    is_bad,
    load_capped,
    load_raw,
    merge_drift,
    merge_softmax,
    row_tiles,
    shape_of,
)
from dgen.sampler.noise import noise_gumbel, noise_row

RowStats = tuple[Tensor, Tensor, Tensor, Tensor | None]

_SPLIT_CHUNKS = 4  # chunks that one program of the split takes, one after the other, with one warp
_WRITE_TILE = 2048  # entries of the softmax that a program writes at once
_WRITE_TILES = 8  # and how often


@jit
def _row_stats_split_kernel(
    logits_ptr, row_stride, temps_ptr, top_ptr, total_ptr, drift_ptr, reach_ptr,
    vocab_size, chunks, canvas_len, min_temperature, softcap,
    HAS_CAP: tl.constexpr, EVEN: tl.constexpr, CHUNK: tl.constexpr, PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Statistics of PER_PROGRAM neighbouring chunks of one row, each around its own maximum.

    One warp a program: a chunk's sums stay within the warp, and many programs a multiprocessor hide each other's loads.
    """
    splits = tl.cdiv(chunks, PER_PROGRAM)
    row = (tl.program_id(0) // splits).to(tl.int64)
    first = (tl.program_id(0) % splits) * PER_PROGRAM
    inv_t = 1.0 / tl.maximum(tl.load(temps_ptr + row // canvas_len), min_temperature)
    for chunk in range(first, tl.minimum(first + PER_PROGRAM, chunks)):
        index = chunk * CHUNK + tl.arange(0, CHUNK)
        x = load_raw(logits_ptr + row * row_stride, index, vocab_size, EVEN)
        at = row * chunks + chunk
        if HAS_CAP:
            reach = chunk_max(tl.abs(x))
            tl.store(reach_ptr + at, reach)
            top, total, drift = capped_chunk_softmax(x, reach, inv_t, softcap)
        else:
            top, total, drift = chunk_softmax(x, inv_t)
        tl.store(top_ptr + at, top)
        tl.store(total_ptr + at, total)
        tl.store(drift_ptr + at, drift)


@jit_for_any("seed", "rows", "rows_per_seed")
def _row_stats_finish_kernel(
    logits_ptr, row_stride, temps_ptr, top_ptr, total_ptr, drift_ptr, reach_ptr,
    seed, seeds_ptr, rows_per_seed, canvases_ptr, steps_ptr,
    argmax_ptr, sample_ptr, entropy_ptr, probs_ptr, row_scale_ptr,
    rows, vocab_size, chunks, canvas_len, min_temperature, softcap,
    DRAW_CHUNK: tl.constexpr, DRAW_WITHIN: tl.constexpr, HAS_CAP: tl.constexpr, EVEN: tl.constexpr,
    HALF: tl.constexpr, CHUNK: tl.constexpr, CHUNK_BLOCK: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Programs below `rows` merge and draw, one row each; those above write softmaxes meanwhile.

    The writers take the rows from the last one down: what the split read last is what a cache still holds.
    """
    program = tl.program_id(0)
    writers = tl.cdiv(vocab_size, TILE * TILES)
    drawing = program < rows
    job = tl.where(drawing, program * writers, rows * writers - 1 - (program - rows))
    row = (job // writers).to(tl.int64)
    request = row // canvas_len
    temp = tl.load(temps_ptr + request)
    inv_t = 1.0 / tl.maximum(temp, min_temperature)
    row_ptr = logits_ptr + row * row_stride
    chunk = tl.arange(0, CHUNK_BLOCK)
    inside = chunk < chunks
    at = row * chunks + chunk
    top = tl.load(top_ptr + at, mask=inside, other=float("-inf"))
    total = tl.load(total_ptr + at, mask=inside, other=0.0)
    bad, row_top, d, row_total = merge_softmax(top, total, inv_t)
    if drawing:
        drift = tl.load(drift_ptr + at, mask=inside, other=0.0)
        entropy = tl.log(row_total) - merge_drift(total, drift, d) / row_total
        if seeds_ptr is None:
            row_seed = seed.to(tl.int64)
        else:
            row_seed = tl.load(seeds_ptr + row // rows_per_seed)
        canvas = request if canvases_ptr is None else tl.load(canvases_ptr + request)
        step = request * 0 if steps_ptr is None else tl.load(steps_ptr + request)
        position = row % canvas_len

        lane = tl.arange(0, CHUNK)
        best = first_index(top == row_top, chunk, chunks - 1) * CHUNK + lane
        x = load_capped(row_ptr, best, best < vocab_size, softcap, HAS_CAP)
        argmax = first_index(x == tl.max(x, axis=0), best, vocab_size - 1)

        word = noise_row(row_seed, canvas, step, position, DRAW_CHUNK, CHUNK_BLOCK)
        key = tl.where(d > float("-inf"), tl.log(tl.where(total > 0, total, 1.0)) + d, d) + noise_gumbel(word)
        drawn = first_index(key == tl.max(key, axis=0), chunk, chunks - 1)
        index = drawn * CHUNK + lane
        x = load_capped(row_ptr, index, index < vocab_size, softcap, HAS_CAP)
        word = noise_row(row_seed, canvas, step, position, DRAW_WITHIN, CHUNK)
        key = (x - tl.max(x, axis=0)) * inv_t + noise_gumbel(word)
        sample = first_index(key == tl.max(key, axis=0), index, vocab_size - 1)

        tl.store(argmax_ptr + row, tl.where(bad, -1, argmax))
        tl.store(sample_ptr + row, tl.where(bad, -1, tl.where(temp > 0, sample, argmax)))
        tl.store(entropy_ptr + row, tl.where(bad, float("nan"), entropy))
        if row_scale_ptr is not None:
            tl.store(row_scale_ptr + row, tl.where(bad, 0.0, 1.0 / row_total))
    elif probs_ptr is not None:
        _write_softmax(
            row_ptr, probs_ptr + row * vocab_size, reach_ptr + row * chunks, job % writers,
            row_top, row_total, bad, inv_t, vocab_size, chunks, softcap,
            row_scale_ptr is None, HAS_CAP, EVEN, HALF, CHUNK, TILE, TILES,
        )  # fmt: skip


@jit
def _write_softmax(
    row_ptr, probs_ptr, reach_ptr, part, row_top, row_total, bad, inv_t, vocab_size, chunks, softcap,
    SCALED: tl.constexpr, HAS_CAP: tl.constexpr, EVEN: tl.constexpr, HALF: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One part of one row, of TILES tiles, from its end down; not SCALED leaves out the row's total."""
    scale = 1.0 / row_total if SCALED else 1.0
    k = inv_t * 1.4426950408889634
    shift = row_top * k + tl.log2(row_total) if SCALED else row_top * k
    # Half precision hides what the rounding of a small shift does; bad rows are left to the other way.
    short = (tl.abs(shift) < 1024.0) & (bad == 0) & HALF
    tile = part * TILES + TILES - 1
    for _ in tl.range(0, TILES, num_stages=3):
        index = tile * TILE + tl.arange(0, TILE)
        x = load_raw(row_ptr, index, vocab_size, EVEN)
        if HAS_CAP:
            chunk = tile * (TILE // CHUNK) + tl.arange(0, TILE // CHUNK)
            reach = tl.load(reach_ptr + chunk, mask=chunk < chunks, other=0.0)
            x = cap_raw(x, tl.max(reach, axis=0), softcap, False)
        if short:
            p = tl.exp2(tl.fma(x, k, -shift))
        else:
            p = tl.where(bad, 0.0, tl.exp2((x - row_top) * k) * scale)
        p = p.to(probs_ptr.dtype.element_ty)
        if EVEN:
            tl.store(probs_ptr + index, p)
        else:
            tl.store(probs_ptr + index, p, mask=index < vocab_size)
        tile -= 1


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
    row_scale: Tensor | None = None,
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
        row_scale: fp32 [rows], to be filled. With it the softmax stays e^((x - max) / T), each row still to be
            multiplied by its scale (0 for a row without a distribution): do that after a product that follows.

    Returns:
        argmax int64 [rows] of the soft-capped logits before T (equal logits: the lower id), draw int64 [rows]
        from softmax(logits / T), entropy in nats fp32 [rows], softmax(logits / T) [rows, vocab] or None. A
        row with a NaN, a +inf or no finite logit has argmax = draw = -1, entropy NaN and a softmax of zeros.

    Nothing waits for the device, and temps, row_seeds, canvases and steps are read there: a CUDA graph that has
    captured the call follows what they hold at each replay.
    """
    require_triton(logits.device)
    rows, vocab_size = shape_of(logits, softcap)
    if logits.stride(1) != 1 and vocab_size > 1:
        logits = logits.contiguous()
    device = logits.device
    argmax, sample, entropy, probs = _results(logits, probs_dtype)
    if rows == 0:
        return argmax, sample, entropy, probs
    _check_row_scale(row_scale, rows)
    temps = temps.to(device=device, dtype=torch.float32).contiguous()
    seeds, rows_per_seed = noise.given_seeds(rows, -(-rows // canvas_len), canvas_len, row_seeds)
    chunks = -(-vocab_size // CHUNK)
    chunked = torch.empty(4, rows, chunks, dtype=torch.float32, device=device).unbind()
    cap, has_cap = (1.0, False) if softcap is None else (float(softcap), True)
    _row_stats_split_kernel[(rows * triton.cdiv(chunks, _SPLIT_CHUNKS),)](
        logits, logits.stride(0), temps, *chunked, vocab_size, chunks, canvas_len, MIN_TEMPERATURE, cap,
        HAS_CAP=has_cap, EVEN=vocab_size % CHUNK == 0, CHUNK=CHUNK, PER_PROGRAM=_SPLIT_CHUNKS,
        num_warps=1, maxnreg=72,
    )  # fmt: skip
    writers = 0 if probs is None else triton.cdiv(vocab_size, _WRITE_TILE * _WRITE_TILES)
    _row_stats_finish_kernel[(rows + rows * writers,)](
        logits, logits.stride(0), temps, *chunked,
        noise.seed_to_int64(seed), seeds, rows_per_seed, noise.as_int64(canvases), noise.as_int64(steps),
        argmax, sample, entropy, probs, row_scale,
        rows, vocab_size, chunks, canvas_len, MIN_TEMPERATURE, cap,
        DRAW_CHUNK=int(noise.Purpose.DRAW_CHUNK), DRAW_WITHIN=int(noise.Purpose.DRAW_WITHIN),
        HAS_CAP=has_cap, EVEN=vocab_size % (_WRITE_TILE * _WRITE_TILES) == 0,
        HALF=probs_dtype in (torch.bfloat16, torch.float16),
        CHUNK=CHUNK, CHUNK_BLOCK=max(4, triton.next_power_of_2(chunks)), TILE=_WRITE_TILE, TILES=_WRITE_TILES,
        num_warps=4, maxnreg=64,
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
    row_scale: Tensor | None = None,
) -> RowStats:
    """The torch form of `sample_row_stats`: same meaning, same noise, any device."""
    rows, vocab_size = shape_of(logits, softcap)
    _check_row_scale(row_scale, rows)
    places = noise.places_of_rows(rows, canvas_len, seed, row_seeds, canvases, steps, logits.device)
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
        if row_scale is not None:
            row_scale[tile] = (1 / z).masked_fill(bad, 0.0)
        if probs is not None:
            p = e if row_scale is not None else e / z[:, None]
            probs[tile] = p.masked_fill(bad[:, None], 0.0).to(probs.dtype)
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


def _check_row_scale(row_scale: Tensor | None, rows: int) -> None:
    if row_scale is not None and not (
        row_scale.shape == (rows,) and row_scale.dtype == torch.float32 and row_scale.is_contiguous()
    ):
        raise ValueError(
            f"row_scale must be contiguous fp32 [{rows}], got {row_scale.dtype} {tuple(row_scale.shape)}"
        )
