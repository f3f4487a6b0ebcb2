"""The stash: both implementations against a float64 loop, and nothing written that was not asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

INF = float("inf")
NAN = float("nan")
UNTOUCHED = -77

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, from the interpreter


@dataclass
class Call:
    """One call of the stash: defaults are two requests in three slots, everything kept."""

    logits: torch.Tensor
    canvas_len: int = 3
    src: list[int] = field(default_factory=lambda: [0, 1])
    slots: list[int] = field(default_factory=lambda: [2, 0])
    keep: list[bool] = field(default_factory=lambda: [True, True])
    valid: list[int] = field(default_factory=lambda: [3, 3])
    temps: list[float] = field(default_factory=lambda: [0.7, 0.4])
    num_topk: int = 4
    ids: dict[int, list[int]] = field(default_factory=dict)  # by slot
    max_ids: int = 0
    width: int = 6
    logits_mode: bool = False
    softcap: float | None = None
    dtype: torch.dtype = torch.int64
    num_slots: int = 3

    def run(self, kernels, device):
        """(ids, log-probabilities, ranks) on the CPU; untouched places hold -77, NaN and -77."""
        shape = (self.num_slots, self.canvas_len)
        out_ids = torch.full((*shape, self.width), UNTOUCHED, dtype=self.dtype, device=device)
        out_logprobs = torch.full((*shape, self.width), NAN, device=device)
        out_ranks = torch.full(shape, UNTOUCHED, dtype=self.dtype, device=device)
        num_ids = torch.tensor([len(self.ids.get(s, [])) for s in range(self.num_slots)], dtype=self.dtype)
        token_ids = None
        if self.max_ids:
            padded = [self.ids.get(s, []) for s in range(self.num_slots)]
            padded = [row + [2**20] * (self.max_ids - len(row)) for row in padded]
            token_ids = torch.tensor(padded, dtype=self.dtype, device=device)
        kernels.stash(
            self.logits.to(device),
            self.canvas_len,
            torch.tensor(self.src, dtype=self.dtype, device=device),
            torch.tensor(self.slots, dtype=self.dtype, device=device),
            torch.tensor(self.keep, device=device),
            torch.tensor(self.valid, dtype=self.dtype, device=device),
            torch.tensor(self.temps, device=device),
            self.num_topk,
            num_ids.to(device),
            token_ids,
            out_ids,
            out_logprobs,
            out_ranks,
            self.logits_mode,
            softcap=self.softcap,
        )
        return out_ids.cpu(), out_logprobs.cpu(), out_ranks.cpu()

    def expected(self):
        """The same by a loop over rows in float64."""
        shape = (self.num_slots, self.canvas_len)
        out_ids = torch.full((*shape, self.width), UNTOUCHED, dtype=self.dtype)
        out_logprobs = torch.full((*shape, self.width), NAN, dtype=torch.float64)
        out_ranks = torch.full(shape, UNTOUCHED, dtype=self.dtype)
        for j, slot in enumerate(self.slots):
            for p in range(self.valid[j] if self.keep[j] else 0):
                row = self.logits[self.src[j] * self.canvas_len + p].cpu()
                columns, rank = self.expected_row(row, max(self.temps[j], 1e-10), self.ids.get(slot, []))
                columns += [(0 if rank else -1, -INF)] * (self.width - len(columns))
                out_ids[slot, p] = torch.tensor([i for i, _ in columns])
                out_logprobs[slot, p] = torch.tensor([v for _, v in columns], dtype=torch.float64)
                out_ranks[slot, p] = rank
        return out_ids, out_logprobs, out_ranks

    def expected_row(self, row, t, asked):
        x = row.double()
        if self.softcap is not None:
            x = torch.where(x.isinf(), x, self.softcap * torch.tanh(x / self.softcap))
        if x.isnan().any() or not x.max().isfinite():
            return [], 0
        values = x.float().tolist()  # ties are those of fp32
        order = sorted(range(len(values)), key=lambda i: (-values[i], i))
        scores = x / t if self.logits_mode else torch.log_softmax((x - x.max()) / t, dim=-1)
        following = asked or order[: self.num_topk]
        columns = [(i, float(scores[i]) if 0 <= i < len(values) else -INF) for i in (order[0], *following)]
        return columns, sum(value >= values[order[0]] for value in values)

    def check(self, kernels, device):
        got, expected = self.run(kernels, device), self.expected()
        assert torch.equal(got[0], expected[0])
        in_range = expected[1].float()  # what lies beyond fp32 is -inf there
        torch.testing.assert_close(got[1], in_range, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert torch.equal(got[2], expected[2])
        return got


def random_logits(generator, vocab, rows=6):
    return torch.randn(rows, vocab, generator=generator) * 3


@pytest.mark.parametrize("vocab", [1, 2, 7, 1023, 1024, 1025, 2049])
def test_any_vocabulary_matches_float64(kernels, device, generator, vocab):
    Call(random_logits(generator, vocab)).check(kernels, device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("logits_mode", [False, True])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_every_mode_matches_float64(kernels, device, generator, dtype, logits_mode, softcap):
    logits = random_logits(generator, 1100) * 4
    call = Call(logits, dtype=dtype, logits_mode=logits_mode, softcap=softcap, ids={0: [3, 1099]}, max_ids=3)
    ids, _, ranks = call.check(kernels, device)
    assert ids.dtype == ranks.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_match_float64(kernels, device, generator, dtype):
    Call(random_logits(generator, 1100).to(dtype), softcap=30.0).check(kernels, device)


def test_tied_logits_come_by_lower_id_and_count_in_the_rank(kernels, device, generator):
    logits = (torch.randn(6, 2100, generator=generator) * 0.4).round()
    logits[0], logits[1] = 0.0, -0.0
    logits[1, 1500] = 0.0  # equal to -0.0
    ids, _, ranks = Call(logits, num_topk=5).check(kernels, device)
    assert ids[2, 0].tolist() == [0, 0, 1, 2, 3, 4]
    assert ids[2, 1].tolist() == [0, 0, 1, 2, 3, 4]
    assert ranks[2, :2].tolist() == [2100, 2100]


def test_the_largest_may_lie_all_in_one_chunk_or_one_in_each(kernels, device, generator):
    logits = torch.randn(2, 5 * 1024 + 7, generator=generator)
    logits[0, 2048:2060] += 50
    logits[1, ::1024] += 50
    call = Call(logits, canvas_len=1, valid=[1, 1], num_topk=9, width=10)
    ids, _, _ = call.check(kernels, device)
    assert all(2048 <= token_id < 2060 for token_id in ids[2, 0].tolist())
    assert sorted(token_id % 1024 for token_id in ids[0, 0, 1:7].tolist()) == [0] * 6


@pytest.mark.parametrize("num_topk", [0, 1, 3])
def test_fewer_largest_than_columns_are_padded(kernels, device, generator, num_topk):
    ids, logprobs, _ = Call(random_logits(generator, 50), num_topk=num_topk).check(kernels, device)
    assert not ids[2, :, num_topk + 1 :].any()
    assert bool((logprobs[2, :, num_topk + 1 :] == -INF).all())


def test_more_largest_than_the_vocabulary_has_are_padded(kernels, device, generator):
    Call(random_logits(generator, 3), num_topk=5).check(kernels, device)


def test_as_many_largest_as_there_may_be(kernels, device, generator):
    many = 200 if device.type == "cpu" else 1024  # one by one, and slowly in the interpreter
    logits = torch.randn(1, many + 100, generator=generator).round(decimals=1)
    call = Call(logits, canvas_len=1, src=[0], slots=[0], keep=[True], valid=[1], temps=[0.5])
    replace(call, num_topk=many, width=many + 1).check(kernels, device)


def test_ids_asked_for_replace_the_largest_in_their_own_slot_only(kernels, device, generator):
    call = Call(random_logits(generator, 1200), ids={2: [7, 0, 1199, 7], 1: [5]}, max_ids=4)
    ids, _, _ = call.check(kernels, device)
    assert ids[2, 0, 1:].tolist() == [7, 0, 1199, 7, 0]
    assert ids[0, 0, 1] == ids[0, 0, 0]  # that slot asked for none: the largest, which begin with the argmax


def test_ids_outside_the_vocabulary_are_kept_at_minus_infinity(kernels, device, generator):
    call = Call(random_logits(generator, 20), ids={2: [20, -1, 19]}, max_ids=3)
    _, logprobs, _ = call.check(kernels, device)
    assert bool((logprobs[2, :, 1:3] == -INF).all())
    assert bool(logprobs[2, :, 3].isfinite().all())


@pytest.mark.parametrize("keep", [[True, False], [False, True], [False, False]])
def test_rows_that_are_not_kept_are_untouched(kernels, device, generator, keep):
    ids, logprobs, ranks = Call(random_logits(generator, 30), keep=keep).check(kernels, device)
    assert bool((ids[1] == UNTOUCHED).all())  # no request lives there
    for kept, slot in zip(keep, [2, 0], strict=True):
        assert bool((ids[slot] == UNTOUCHED).all()) != kept
        assert bool(logprobs[slot].isnan().all()) != kept
        assert bool((ranks[slot] == UNTOUCHED).all()) != kept


def test_positions_beyond_the_valid_ones_are_untouched(kernels, device, generator):
    ids, _, ranks = Call(random_logits(generator, 30), valid=[2, 0]).check(kernels, device)
    assert bool((ids[2, 2] == UNTOUCHED).all())
    assert bool((ids[0] == UNTOUCHED).all())
    assert ranks[2].tolist()[2] == UNTOUCHED


def test_requests_read_their_own_rows(kernels, device, generator):
    logits = random_logits(generator, 40, rows=12)
    Call(logits, src=[3, 1], slots=[1, 2], temps=[0.9, 0.2]).check(kernels, device)


def test_a_wider_canvas_and_views_as_outputs_are_written_in_place(kernels, device, generator):
    call = Call(random_logits(generator, 40))
    expected_ids, _, expected_ranks = call.expected()
    big_ids = torch.full((3, 5, 9), UNTOUCHED, device=device)
    big_logprobs = torch.full((3, 5, 9), NAN, device=device)
    ranks = torch.full((5, 3), UNTOUCHED, device=device).T
    at = [torch.tensor(values, device=device) for values in (call.src, call.slots, call.keep, call.valid)]
    kernels.stash(
        call.logits.to(device),
        3,
        *at,
        torch.tensor(call.temps, device=device),
        4,
        torch.zeros(3, dtype=torch.int64, device=device),
        None,
        big_ids[:, :, 1:7],
        big_logprobs[:, :, 1:7],
        ranks,
        False,
    )
    assert torch.equal(big_ids[:, :3, 1:7].cpu(), expected_ids)
    assert torch.equal(ranks[:, :3].cpu(), expected_ranks)
    outside = torch.cat([big_ids[:, :, :1], big_ids[:, :, 7:]], dim=2)
    assert bool((outside == UNTOUCHED).all())
    assert bool((big_ids[:, 3:] == UNTOUCHED).all())


def test_zero_temperature_is_clamped_and_keeps_differences(kernels, device):
    row = [1e30, 1e30, 1.0, -1e30, -INF]
    call = Call(torch.tensor([row] * 6), temps=[0.0, 1e-12])
    ids, logprobs, ranks = call.check(kernels, device)
    torch.testing.assert_close(logprobs[2, 0, :2], torch.full((2,), 0.5).log())
    assert ids[2, 0, :4].tolist() == [0, 0, 1, 2]
    assert ranks[2, 0] == 2


def test_zero_temperature_under_the_softcap_gives_the_argmax_all_of_it(kernels, device, generator):
    logits = torch.randn(6, 1500, generator=generator) * 20
    asked = [int(row.argmax()) for row in logits[:3]]
    call = Call(logits, temps=[0.0, 0.0], softcap=30.0, ids={2: asked}, max_ids=3)
    ids, logprobs, _ = call.run(kernels, device)
    assert torch.equal(logprobs[2, range(3), range(1, 4)], torch.zeros(3))
    assert logprobs[0, :, :2].tolist() == [[0.0, 0.0]] * 3
    assert ids[2, :, 0].tolist() == asked


def test_masked_logits_have_no_probability(kernels, device, generator):
    logits = random_logits(generator, 1100)
    logits[:, :1000] = -INF
    logits[3] = -INF
    logits[3, 1050] = 2.0
    call = Call(logits, ids={2: [5, 1050]}, max_ids=2)
    ids, logprobs, _ = call.check(kernels, device)
    assert float(logprobs[2, 0, 1]) == -INF
    assert ids[0, 0].tolist() == [1050, 1050, 0, 1, 2, 0]  # then the masked ones, by id
    assert logprobs[0, 0].tolist() == [0, 0, -INF, -INF, -INF, -INF]


@pytest.mark.parametrize("value", [NAN, INF, None])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_row_without_a_distribution_is_marked_and_no_nan_leaves(kernels, device, generator, value, softcap):
    logits = random_logits(generator, 1100)
    if value is None:
        logits[1] = -INF
    else:
        logits[1, 1040] = value
    call = Call(logits, softcap=softcap, ids={0: [3]}, max_ids=1)
    ids, logprobs, ranks = call.check(kernels, device)
    assert bool((ids[2, 1] == -1).all())
    assert bool((logprobs[2, 1] == -INF).all())
    assert ranks[2, 1] == 0
    assert not logprobs[[2, 0]].isnan().any()


@pytest.mark.parametrize("programs", [1, 3])
def test_any_number_of_programs_gives_the_same(device, generator, monkeypatch, programs):
    from dgen.sampler import kernels_for

    monkeypatch.setattr("dgen.sampler.logprobs._SPLIT_PROGRAMS", programs)
    Call(random_logits(generator, 9000), valid=[3, 2]).check(kernels_for("triton", device), device)


def test_padded_logits_give_the_same(kernels, device, generator):
    padded = torch.full((6, 1100), NAN)
    padded[:, :1030] = random_logits(generator, 1030)
    Call(padded.to(device)[:, :1030]).check(kernels, device)
    Call(padded.to(device)[:, :1030].T.contiguous().T).check(kernels, device)


def test_no_requests_write_nothing(kernels, device, generator):
    none = Call(random_logits(generator, 9), src=[], slots=[], keep=[], valid=[], temps=[])
    ids, _, _ = none.run(kernels, device)
    assert bool((ids == UNTOUCHED).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_topk": 6}, "7 wide"),
        ({"max_ids": 6}, "7 wide"),
        ({"num_topk": -1}, "num_topk"),
        ({"num_topk": 1025, "width": 1100}, "num_topk"),
        ({"canvas_len": 0}, "3 positions"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(kernels, device, generator, change, message):
    call = replace(Call(random_logits(generator, 9)), **change)
    if "canvas_len" in change:
        short = [torch.zeros(3, 2, 6, device=device), torch.zeros(3, 2, 6, device=device)]
        none = torch.zeros(3, dtype=torch.int64, device=device)
        with pytest.raises(ValueError, match=message):
            kernels.stash(
                call.logits.to(device),
                3,
                none,
                none,
                none,
                none,
                none,
                4,
                none,
                None,
                *short,
                none[None],
                False,
            )
    else:
        with pytest.raises(ValueError, match=message):
            call.run(kernels, device)


@pytest.mark.gpu
def test_a_canvas_of_the_released_model_equals_the_reference(device, generator):
    from dgen.sampler import kernels_for

    logits = (torch.randn(256, 262144, generator=generator) * 4).bfloat16()
    call = Call(logits, canvas_len=256, src=[0], slots=[1], keep=[True], valid=[250], temps=[0.5])
    call = replace(call, num_topk=20, width=21, softcap=30.0)
    triton, torch_ = (call.run(kernels_for(name, device), device) for name in ("triton", "torch"))
    # Neighbours in bf16 lie too far apart for the two tanh's last places to turn or tie them.
    assert torch.equal(triton[0], torch_[0])
    torch.testing.assert_close(triton[1], torch_[1], rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(triton[2], torch_[2])
