"""The stash: log-probabilities of the rows that converged, kept per slot until they are emitted.

One row of output is the argmax, then either the ids that the request asked for or the largest logits. All
statistics are fp32, of the soft-capped logits over the request's temperature; the argmax and its rank are
taken before that division. It knows slots as numbers only: who lives in one, and until when, is the engine's.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import torch
from torch import Tensor

from dgen.jit import constant, jit, require_triton, tl, triton
from dgen.sampler.chunks import (
    CHUNK,
    MIN_TEMPERATURE,
    cap_raw,
    capped,
    chunk_max,
    chunk_softmax,
    first_argmax,
    first_index,
    is_bad,
    load_capped,
    load_raw,
    merge_softmax,
    row_tiles,
    shape_of,
    take,
)
from dgen.sampler.keys import key_id, key_value, order_key, order_keys_reference

MAX_TOPK = 1024
_SPLIT_CHUNKS = 8  # neighbouring chunks make a job: few enough that the jobs of a few kept rows fill the card
_SPLIT_PROGRAMS = 2048  # take the jobs in turns: few enough to be gone at once where nothing is kept
_EXHAUSTED = constant(-(2**63))


@jit
def _stash_split_kernel(
    logits_ptr, row_stride, src_ptr, keep_ptr, valid_ptr, temps_ptr,
    top_ptr, total_ptr, count_ptr, argmax_ptr,
    rows, vocab_size, chunks, canvas_len, min_temperature, softcap,
    HAS_CAP: tl.constexpr, EVEN: tl.constexpr, CHUNK: tl.constexpr, PER_JOB: tl.constexpr,
):  # fmt: skip
    """Of each chunk of the kept rows: the maximum, its id, how often it occurs, the sum of e^d."""
    splits = tl.cdiv(chunks, PER_JOB)
    for job in range(tl.program_id(0), rows * splits, tl.num_programs(0)):
        row = (job // splits).to(tl.int64)
        request, position = row // canvas_len, row % canvas_len
        if (tl.load(keep_ptr + request) != 0) & (position < tl.load(valid_ptr + request)):
            first = (job % splits) * PER_JOB
            src = tl.load(src_ptr + request).to(tl.int64) * canvas_len + position
            inv_t = 1.0 / tl.maximum(tl.load(temps_ptr + request), min_temperature)
            for chunk in range(first, tl.minimum(first + PER_JOB, chunks)):
                index = chunk * CHUNK + tl.arange(0, CHUNK)
                x = load_raw(logits_ptr + src * row_stride, index, vocab_size, EVEN)
                if HAS_CAP:
                    x = cap_raw(x, chunk_max(tl.abs(x)), softcap, False)
                top, total, _ = chunk_softmax(x, inv_t)
                hit = (x == top) & (index < vocab_size)
                at = row * chunks + chunk
                tl.store(top_ptr + at, top)
                tl.store(total_ptr + at, total)
                tl.store(count_ptr + at, tl.sum(hit.to(tl.int32), axis=0))
                tl.store(argmax_ptr + at, tl.min(tl.where(hit, index, vocab_size - 1), axis=0))


@jit
def _stash_write_kernel(
    logits_ptr, row_stride, src_ptr, slots_ptr, keep_ptr, valid_ptr, temps_ptr,
    top_ptr, total_ptr, count_ptr, argmax_ptr,
    num_token_ids_ptr, token_ids_ptr, token_ids_stride, max_ids,
    ids_ptr, ids_slot, ids_row, scores_ptr, scores_slot, scores_row, ranks_ptr, ranks_slot, ranks_row,
    vocab_size, chunks, canvas_len, width, num_topk, min_temperature, softcap,
    LOGITS_MODE: tl.constexpr, HAS_CAP: tl.constexpr,
    CHUNK: tl.constexpr, CHUNK_BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
):  # fmt: skip
    """One kept row: merge its chunks; write argmax, ids asked for or largest, padding and rank."""
    row = tl.program_id(0).to(tl.int64)
    request, position = row // canvas_len, row % canvas_len
    if (tl.load(keep_ptr + request) != 0) & (position < tl.load(valid_ptr + request)):
        slot = tl.load(slots_ptr + request).to(tl.int64)
        row_ptr = logits_ptr + (tl.load(src_ptr + request).to(tl.int64) * canvas_len + position) * row_stride
        ids_ptr += slot * ids_slot + position * ids_row
        scores_ptr += slot * scores_slot + position * scores_row
        temp = tl.maximum(tl.load(temps_ptr + request), min_temperature)

        chunk = tl.arange(0, CHUNK_BLOCK)
        inside = chunk < chunks
        top = tl.load(top_ptr + row * chunks + chunk, mask=inside, other=float("-inf"))
        total = tl.load(total_ptr + row * chunks + chunk, mask=inside, other=0.0)
        count = tl.load(count_ptr + row * chunks + chunk, mask=inside, other=0)
        chunk_argmax = tl.load(argmax_ptr + row * chunks + chunk, mask=inside, other=0)
        bad, row_top, _, row_total = merge_softmax(top, total, 1.0 / temp)
        log_total = tl.log(row_total)
        argmax = take(chunk_argmax, chunk, first_index(top == row_top, chunk, chunks - 1))
        rank = tl.sum(tl.where(top == row_top, count, 0), axis=0)

        asked = tl.minimum(tl.load(num_token_ids_ptr + slot), max_ids).to(tl.int32)
        shown = tl.where(bad, 0, tl.where(asked > 0, asked, tl.minimum(num_topk, vocab_size)))
        column = tl.arange(0, WIDTH_BLOCK)
        padding = (column < width) & (column > tl.where(bad, -1, shown))
        tl.store(ids_ptr + column, column * 0 - tl.where(bad, 1, 0), mask=padding)
        tl.store(scores_ptr + column, tl.full([WIDTH_BLOCK], float("-inf"), tl.float32), mask=padding)
        tl.store(ranks_ptr + slot * ranks_slot + position * ranks_row, tl.where(bad, 0, rank))
        if bad == 0:
            tl.store(ids_ptr, argmax)
            tl.store(scores_ptr, _score(row_top, row_top, temp, log_total, LOGITS_MODE))
            if asked > 0:
                real = (column >= 1) & (column <= asked)
                ids = tl.load(token_ids_ptr + slot * token_ids_stride + column - 1, mask=real, other=-1)
                known = (ids >= 0) & (ids < vocab_size)
                x = load_capped(row_ptr, ids, known, softcap, HAS_CAP)
                tl.store(ids_ptr + column, ids, mask=real)
                tl.store(scores_ptr + column, _score(x, row_top, temp, log_total, LOGITS_MODE), mask=real)
            else:
                _write_largest(
                    row_ptr, top, chunk_argmax, chunk, inside, ids_ptr, scores_ptr, shown,
                    row_top, temp, log_total, vocab_size, softcap, LOGITS_MODE, HAS_CAP, CHUNK,
                )  # fmt: skip


@jit
def _write_largest(
    row_ptr, top, chunk_argmax, chunk, inside, ids_ptr, scores_ptr, shown,
    row_top, temp, log_total, vocab_size, softcap,
    LOGITS_MODE: tl.constexpr, HAS_CAP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Columns 1 .. shown: the largest entries one by one, each from the chunk whose head leads.

    A head is the key of its chunk's largest entry not yet taken; only the chunk that lost it is read again.
    """
    lane = tl.arange(0, CHUNK)
    heads = tl.where(inside, order_key(top, chunk_argmax), _EXHAUSTED)
    k = shown * 0 + 1
    while k <= shown:
        best = tl.max(heads, axis=0)
        tl.store(ids_ptr + k, key_id(best))
        tl.store(scores_ptr + k, _score(key_value(best), row_top, temp, log_total, LOGITS_MODE))
        index = (key_id(best) // CHUNK) * CHUNK + lane
        within = index < vocab_size
        key = order_key(load_capped(row_ptr, index, within, softcap, HAS_CAP), index)
        left = within & (key < best) & (index != key_id(best))
        next_head = tl.max(tl.where(left, key, _EXHAUSTED), axis=0)
        heads = tl.where(chunk == key_id(best) // CHUNK, next_head, heads)
        k += 1


@jit
def _score(x, row_top, temp, log_total, LOGITS_MODE: tl.constexpr):
    """The scaled logit or the log-probability of logits x; the maximum is taken off before the division."""
    if LOGITS_MODE:
        score = x / temp
    else:
        # x may round differently from its own maximum in another kernel, and 1 / T would blow that up.
        score = tl.minimum(x - row_top, 0.0) / temp - log_total
    return score


def stash_converged_logprobs(
    logits: Tensor,
    canvas_len: int,
    src: Tensor,
    slots: Tensor,
    keep: Tensor,
    valid: Tensor,
    temps: Tensor,
    num_topk: int,
    num_token_ids: Tensor,
    token_ids: Tensor | None,
    out_ids: Tensor,
    out_logprobs: Tensor,
    out_ranks: Tensor,
    logits_mode: bool,
    *,
    softcap: float | None = None,
) -> None:
    """Write the log-probabilities of converged rows into their slots, by Triton kernels.

    Request j owns the logits rows src[j] * canvas_len + p for p < valid[j]. Where keep[j], row p goes to
    out[slots[j], p]; every other place of the outputs is left as it is.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16, any row stride.
        src, slots, valid: integers [m]. keep: bool [m]. temps: [m], clamped to 1e-10.
        num_topk: how many of the largest logits follow the argmax, 0 to 1024; equal ones by lower id.
        num_token_ids: integers [slots]; above 0, that many of the slot's `token_ids` follow instead.
        token_ids: integers [slots, max_ids], or None where no slot asks. One outside the vocabulary has -inf.
        out_ids, out_logprobs: [slots, canvas, width], width >= 1 + max(num_topk, max_ids). The argmax comes
            first; what is not filled is token 0 at -inf.
        out_ranks: [slots, canvas]: how many logits equal or exceed the argmax's, exact.
        logits_mode: write logits / T instead of log-probabilities.
        softcap: as in `sample_row_stats`.

    A row with a NaN, a +inf or no finite logit is written as ids -1, log-probabilities -inf and rank 0.

    Raises:
        ValueError: shapes that do not fit.
    """
    require_triton(logits.device)
    _check(canvas_len, num_topk, token_ids, out_ids, out_logprobs, out_ranks)
    _, vocab_size = shape_of(logits, softcap)
    rows, device = len(src) * canvas_len, logits.device
    if rows == 0:
        return
    if logits.stride(1) != 1 and vocab_size > 1:
        logits = logits.contiguous()
    max_ids = 0 if token_ids is None else token_ids.shape[1]
    token_ids = out_ids if token_ids is None else token_ids  # never read where max_ids is 0
    temps = temps.to(device=device, dtype=torch.float32)
    chunks = -(-vocab_size // CHUNK)
    top, total = torch.empty(2, rows, chunks, dtype=torch.float32, device=device)
    count, argmax = torch.empty(2, rows, chunks, dtype=torch.int32, device=device)
    chunked = (top, total, count, argmax)
    cap, has_cap = (1.0, False) if softcap is None else (float(softcap), True)
    jobs = rows * triton.cdiv(chunks, _SPLIT_CHUNKS)
    _stash_split_kernel[(min(jobs, _SPLIT_PROGRAMS),)](
        logits, logits.stride(0), src, keep, valid, temps, *chunked,
        rows, vocab_size, chunks, canvas_len, MIN_TEMPERATURE, cap,
        HAS_CAP=has_cap, EVEN=vocab_size % CHUNK == 0, CHUNK=CHUNK, PER_JOB=_SPLIT_CHUNKS, num_warps=1,
    )  # fmt: skip
    _stash_write_kernel[(rows,)](
        logits, logits.stride(0), src, slots, keep, valid, temps, *chunked,
        num_token_ids, token_ids, token_ids.stride(0), max_ids,
        out_ids, *out_ids.stride()[:2], out_logprobs, *out_logprobs.stride()[:2],
        out_ranks, *out_ranks.stride(),
        vocab_size, chunks, canvas_len, out_ids.shape[-1], num_topk, MIN_TEMPERATURE, cap,
        LOGITS_MODE=bool(logits_mode), HAS_CAP=has_cap, CHUNK=CHUNK,
        CHUNK_BLOCK=triton.next_power_of_2(chunks), WIDTH_BLOCK=triton.next_power_of_2(out_ids.shape[-1]),
        num_warps=4,
    )  # fmt: skip


def stash_converged_logprobs_reference(
    logits: Tensor,
    canvas_len: int,
    src: Tensor,
    slots: Tensor,
    keep: Tensor,
    valid: Tensor,
    temps: Tensor,
    num_topk: int,
    num_token_ids: Tensor,
    token_ids: Tensor | None,
    out_ids: Tensor,
    out_logprobs: Tensor,
    out_ranks: Tensor,
    logits_mode: bool,
    *,
    softcap: float | None = None,
) -> None:
    """The torch form of `stash_converged_logprobs`: same meaning, any device; it waits for the device."""
    _check(canvas_len, num_topk, token_ids, out_ids, out_logprobs, out_ranks)
    _, vocab_size = shape_of(logits, softcap)
    position = torch.arange(canvas_len, device=logits.device)
    kept = keep.bool()[:, None] & (position < valid[:, None])
    request, place = kept.nonzero(as_tuple=True)
    for tile in row_tiles(len(request), 2 * vocab_size):
        j, p = request[tile], place[tile]
        slot = slots[j].long()
        x = capped(logits[src[j].long() * canvas_len + p], softcap)
        t = temps[j].to(torch.float32).clamp(min=MIN_TEMPERATURE)[:, None]
        top = x.amax(dim=-1, keepdim=True)
        ids, chosen = _columns(
            x, num_topk, num_token_ids[slot], None if token_ids is None else token_ids[slot]
        )
        if logits_mode:
            scores = chosen / t
        else:
            scores = (chosen - top) / t - torch.exp((x - top) / t).sum(dim=-1, keepdim=True).log()
        scores = torch.where(chosen == float("-inf"), chosen, scores)
        bad = is_bad(x)
        width = out_ids.shape[-1] - ids.shape[-1]
        ids = torch.nn.functional.pad(ids, (0, width), value=0).masked_fill(bad[:, None], -1)
        scores = torch.nn.functional.pad(scores, (0, width), value=float("-inf"))
        out_ids[slot, p] = ids.to(out_ids.dtype)
        out_logprobs[slot, p] = scores.masked_fill(bad[:, None], float("-inf")).to(out_logprobs.dtype)
        out_ranks[slot, p] = (x >= top).sum(dim=-1).masked_fill(bad, 0).to(out_ranks.dtype)


def _columns(x: Tensor, num_topk: int, num_ids: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids and logits of each column, argmax first: fp32 [n, V] -> int64 and fp32 [n, 1 + widest]."""
    vocab_size = x.shape[-1]
    k = min(num_topk, vocab_size)
    _, top_ids = torch.topk(order_keys_reference(x), k, dim=-1)
    asked = top_ids.new_zeros(len(x), 0) if ids is None else ids.long()
    column = torch.arange(max(k, asked.shape[-1]), device=x.device)
    pad = torch.nn.functional.pad
    top_ids, asked = pad(top_ids, (0, len(column) - k)), pad(asked, (0, len(column) - asked.shape[-1]))
    by_ids = (num_ids > 0)[:, None] & (asked.shape[-1] > 0)
    chosen_ids = torch.where(by_ids, asked, top_ids)
    real = column < torch.where(by_ids, num_ids[:, None], k)
    known = real & (chosen_ids >= 0) & (chosen_ids < vocab_size)
    values = x.gather(-1, chosen_ids.clamp(0, vocab_size - 1)).masked_fill(~known, float("-inf"))
    first = first_argmax(x)[:, None]
    return torch.cat([first, chosen_ids * real], dim=-1), torch.cat([x.gather(-1, first), values], dim=-1)


def _check(
    canvas_len: int,
    num_topk: int,
    token_ids: Tensor | None,
    out_ids: Tensor,
    out_logprobs: Tensor,
    out_ranks: Tensor,
) -> None:
    if not 0 <= num_topk <= MAX_TOPK:
        raise ValueError(f"num_topk must be in [0, {MAX_TOPK}], got {num_topk}")
    width = 1 + max(num_topk, 0 if token_ids is None else token_ids.shape[-1])
    ids, logprobs, ranks = (tuple(out.shape) for out in (out_ids, out_logprobs, out_ranks))
    if ids[-1] < width or logprobs != ids:
        raise ValueError(
            f"out_ids and out_logprobs must be equal in shape and {width} wide, got {ids} and {logprobs}"
        )
    if width > 1 and not out_ids.stride(-1) == out_logprobs.stride(-1) == 1:
        raise ValueError("the columns of out_ids and out_logprobs must be contiguous")
    if ids[1] < canvas_len or ranks != ids[:2]:
        raise ValueError(f"the outputs must hold {canvas_len} positions a slot, got ranks {ranks}")
