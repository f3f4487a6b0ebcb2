"""The entropy-bound rule against plain loops and against transformers' own classes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgen.sampler import entropy_bound as rule

NAN = float("nan")


def accepted_plainly(entropy, bound, pinned):
    """Which positions a loop over (entropy, position) accepts."""
    order = sorted((i for i in range(len(entropy)) if not pinned[i]), key=lambda i: (entropy[i], i))
    accepted, before = set(), 0.0
    for i in order:
        if before > bound:
            break
        accepted.add(i)
        before += entropy[i]
    return [i in accepted for i in range(len(entropy))]


# Multiples of 1/64 add without rounding, so that the loop and the cumulative sum must agree to the bit.
exact = st.integers(0, 64).map(lambda n: n / 64)


@given(st.data(), st.integers(1, 12), exact)
def test_accept_matches_a_plain_loop(data, length, bound):
    entropy = data.draw(st.lists(exact, min_size=length, max_size=length))
    pinned = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    got = rule.accept(torch.tensor([entropy]), torch.tensor([bound]), torch.tensor([pinned]))
    assert got[0].tolist() == accepted_plainly(entropy, bound, pinned)
    free = rule.accept(torch.tensor([entropy]), torch.tensor([bound]))
    assert free[0].tolist() == accepted_plainly(entropy, bound, [False] * length)


def test_ties_go_to_the_lower_position():
    got = rule.accept(torch.full((1, 300), 0.25), torch.tensor([0.5]))
    assert got[0].nonzero().flatten().tolist() == [0, 1, 2]


@pytest.mark.parametrize("bound", [0.0, 1e-9])
def test_at_least_one_position_is_accepted(bound):
    got = rule.accept(torch.tensor([[5.0, 4.0, 6.0]]), torch.tensor([bound]))
    assert got.tolist() == [[False, True, False]]


def test_each_canvas_has_its_own_bound_and_order():
    entropy = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
    got = rule.accept(entropy, torch.tensor([0.15, 10.0]))
    assert got.tolist() == [[True, True, False], [True, True, True]]


def test_pinned_positions_use_up_nothing_and_are_not_accepted():
    entropy = torch.tensor([[0.0, 0.5, 0.1, 0.2]])
    pinned = torch.tensor([[False, True, True, False]])
    assert rule.accept(entropy, torch.tensor([0.0]), pinned).tolist() == [[True, False, False, True]]
    assert not rule.accept(entropy, torch.tensor([9.0]), torch.ones(1, 4, dtype=torch.bool)).any()


def test_an_undefined_entropy_is_never_accepted():
    got = rule.accept(torch.tensor([[NAN, 0.1, NAN, 0.2]]), torch.tensor([10.0]))
    assert got.tolist() == [[False, True, False, True]]


def test_accept_matches_transformers():
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
        EntropyBoundSampler,
        EntropyBoundSamplerConfig,
    )

    torch.manual_seed(0)
    logits = torch.randn(5, 64, 50) * torch.rand(5, 64, 1) * 12
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    draw, canvas = torch.randint(50, (5, 64)), torch.randint(50, (5, 64))
    accepted_share = []
    for bound in (0.1, 1.0, 20.0):
        sampler = EntropyBoundSampler(EntropyBoundSamplerConfig(entropy_bound=bound), 64, 50, 48)
        sampler.accept_canvas(canvas, draw, logits, 1)
        accepted = rule.accept(entropy, torch.full((5,), bound))
        assert torch.equal(accepted, sampler.accepted_token_mask)
        accepted_share.append(float(accepted.float().mean()))
    assert 0 < accepted_share[0] < accepted_share[1] < accepted_share[2] < 1


def test_renoise_keeps_the_draw_where_accepted_and_pins_on_top():
    accepted = torch.tensor([[True, False, True, False]])
    draw, noise = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[11, 12, 13, 14]])
    assert rule.renoise(accepted, draw, noise).tolist() == [[1, 12, 3, 14]]
    pinned, pin_ids = torch.tensor([[False, False, True, True]]), torch.tensor([[0, 0, 93, 94]])
    assert rule.renoise(accepted, draw, noise, pinned, pin_ids).tolist() == [[1, 12, 93, 94]]
    with pytest.raises(ValueError, match="pin_ids"):
        rule.renoise(accepted, draw, noise, pinned)


def fp32_span(t_min, t_max):
    return torch.tensor([t_max - t_min], dtype=torch.float32)


@pytest.mark.parametrize(("t_min", "t_max"), [(0.4, 0.8), (0.1, 1.3), (0.0, 1.0), (0.33333, 0.77777)])
@pytest.mark.parametrize("steps", [1, 7, 48])
def test_the_temperature_is_bit_equal_to_transformers(t_min, t_max, steps):
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
        LinearTemperatureScheduleLogitsProcessor,
    )

    class Divided:
        """Stands for the logits and keeps what they are divided by."""

        def __truediv__(self, temperature):
            return temperature

    processor = LinearTemperatureScheduleLogitsProcessor(t_min, t_max, steps)
    for remaining in range(1, steps + 1):
        expected = processor(None, Divided(), torch.tensor(remaining, dtype=torch.int32))
        got = rule.temperature(
            torch.tensor([t_min]), fp32_span(t_min, t_max), torch.tensor([steps]), torch.tensor([remaining])
        )
        assert got.dtype == expected.dtype == torch.float32
        assert got.item() == expected.item()


def test_the_schedule_runs_from_t_max_and_may_be_constant_or_zero():
    remaining = torch.tensor([4, 1, 4, 1])
    t_min, span = torch.tensor([0.4, 0.4, 0.5, 0.0]), torch.tensor([0.4, 0.4, 0.0, 0.0])
    got = rule.temperature(t_min, span, torch.full((4,), 4), remaining)
    torch.testing.assert_close(got, torch.tensor([0.8, 0.5, 0.5, 0.0]))


def stable_plainly(canvases, stability):
    """Whether the last canvas equals each of the `stability` ones before it."""
    before = canvases[:-1][-stability:] if stability else []
    return len(before) == stability and all(canvas == canvases[-1] for canvas in before)


@pytest.mark.parametrize("stability", [0, 1, 2, 4])
def test_stability_matches_a_plain_loop_and_transformers(stability):
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
        StableAndConfidentStoppingCriteria,
    )

    torch.manual_seed(1)
    m, length, kept = 40, 2, 4
    reference = StableAndConfidentStoppingCriteria(stability, 1e9)
    history = torch.full((m, kept, length), 99)  # another tenant's canvases
    seen, past, found = torch.zeros(m, dtype=torch.int64), [[] for _ in range(m)], 0
    canvas = torch.randint(2, (m, length))
    for _ in range(12):
        changed = torch.rand(m, 1) < 0.4
        canvas = torch.where(changed, torch.randint(2, (m, length)), canvas)
        stable = rule.is_stable(canvas, history, seen, torch.full((m,), stability))
        for row, canvases in enumerate(past):
            canvases.append(canvas[row].tolist())
        assert stable.tolist() == [stable_plainly(canvases, stability) for canvases in past]
        assert torch.equal(stable, reference(canvas, torch.zeros(m, length, 3)))
        found += int(stable.sum())
        history, seen = rule.remember(canvas, history), seen + 1
    assert 0 < found < 12 * m or stability == 0


def test_canvases_of_an_earlier_tenant_are_never_believed():
    canvas = torch.tensor([[1, 2]])
    history = canvas[:, None].repeat(1, 3, 1)
    for seen in range(4):
        for stability in range(4):
            got = rule.is_stable(canvas, history, torch.tensor([seen]), torch.tensor([stability]))
            assert got.item() == (seen >= stability)


def test_each_request_has_its_own_stability():
    canvas = torch.tensor([[1], [1], [1]])
    history = torch.tensor([[[1], [5]], [[1], [5]], [[7], [7]]])
    got = rule.is_stable(canvas, history, torch.full((3,), 2), torch.tensor([1, 2, 0]))
    assert got.tolist() == [True, False, True]


def test_without_a_history_only_no_stability_is_stable():
    nothing = torch.zeros(2, 0, 3, dtype=torch.int64)
    canvas, seen = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([5, 5])
    assert rule.is_stable(canvas, nothing, seen, torch.tensor([0, 0])).tolist() == [True, True]
    assert rule.remember(canvas, nothing).shape == (2, 0, 3)


def test_the_newest_canvas_is_remembered_first():
    history = torch.zeros(1, 2, 1, dtype=torch.int64)
    for token in (1, 2, 3):
        history = rule.remember(torch.tensor([[token]]), history)
    assert history.flatten().tolist() == [3, 2]


def test_confidence_matches_transformers():
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
        StableAndConfidentStoppingCriteria,
    )

    torch.manual_seed(2)
    logits = torch.randn(40, 16, 30) * torch.linspace(1, 60, 40)[:, None, None]
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    verdicts = []
    for threshold in (0.005, 0.1, 1.0):
        expected = StableAndConfidentStoppingCriteria(0, threshold)(torch.zeros(40, 16).long(), logits)
        got = rule.is_confident(entropy, torch.full((40,), threshold))
        assert torch.equal(got, expected)
        verdicts.append(int(got.sum()))
    assert 0 < verdicts[1] < verdicts[2] < 40


def test_pinned_positions_are_left_out_of_the_mean():
    entropy = torch.tensor([[0.1, 5.0, 0.3], [0.1, 5.0, 0.3], [0.1, NAN, 0.3], [NAN, 0.0, 0.0]])
    pinned = torch.tensor([[False, True, False], [False] * 3, [False, True, False], [False] * 3])
    torch.testing.assert_close(
        rule.mean_entropy(entropy, pinned), torch.tensor([0.2, 1.8, 0.2, NAN]), equal_nan=True
    )
    got = rule.is_confident(entropy, torch.full((4,), 0.5), pinned)
    assert got.tolist() == [True, False, True, False]


def test_a_canvas_pinned_everywhere_is_confident():
    got = rule.is_confident(torch.tensor([[9.0, NAN]]), torch.tensor([1e-9]), torch.tensor([[True, True]]))
    assert got.tolist() == [True]


def test_no_pins_and_pins_nowhere_agree():
    torch.manual_seed(3)
    entropy, nowhere = torch.rand(6, 50), torch.zeros(6, 50, dtype=torch.bool)
    bound = torch.full((6,), 2.0)
    assert torch.equal(rule.accept(entropy, bound), rule.accept(entropy, bound, nowhere))
    torch.testing.assert_close(rule.mean_entropy(entropy), rule.mean_entropy(entropy, nowhere))
