"""Training on a CPU at tiny sizes: noise, optimizer, rows, and a run that learns and writes what transformers loads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from builtin_recipe import optimizer
from builtin_recipe.examples import build_pools, canvases_of
from builtin_recipe.objective import noised
from builtin_recipe.sizes import CANVAS, SHORT
from builtin_recipe.tokenizer import build_tokenizer
from builtin_recipe.train import Plan, Trainer, rate_at
from transformers import DiffusionGemmaForBlockDiffusion


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_gaps_stay_inside_the_text_and_its_end() -> None:
    torch.manual_seed(0)
    rows, filled = 400, 20
    canvas = torch.full((rows, CANVAS), 5000)  # no id that noise can draw
    changed = noised(canvas, torch.full((rows,), filled), torch.ones(rows), 2048) != 5000
    inside = changed[:, : filled - 1].sum(dim=-1)
    assert inside.max() <= 12
    assert (changed[:, :filled].sum(dim=-1) >= 1).all()
    starts = changed[:, : filled - 1] & ~torch.nn.functional.pad(changed[:, : filled - 2], (1, 0))
    assert set(starts.sum(dim=-1).tolist()) >= {1, 2, 3}  # gaps that lie apart
    behind = changed[:, filled:].float().mean(dim=-1)
    assert set(behind.tolist()) == {0.0, 1.0}


def test_noise_everywhere_has_every_strength() -> None:
    torch.manual_seed(0)
    canvas = torch.full((2000, CANVAS), 5000)
    share = (noised(canvas, torch.full((2000,), 20), torch.zeros(2000), 2048) != 5000).float().mean(dim=-1)
    assert 0.42 < share.mean() < 0.55
    assert (share < 0.1).any()
    assert (share > 0.9).any()


def test_update_is_adamw_with_clipping() -> None:
    torch.manual_seed(0)
    start = torch.randn(50)
    state = optimizer.start(start)
    state.rate.fill_(1e-2)
    theirs = torch.nn.Parameter(start.clone())
    adamw = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01)
    for _ in range(20):
        grad = torch.randn(50)
        optimizer.update(state, grad)
        theirs.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 1.0)
        adamw.step()
    torch.testing.assert_close(state.flat.detach(), theirs.detach(), atol=1e-5, rtol=1e-4)
    assert not torch.equal(state.average, state.flat)


def test_rate_warms_up_and_falls_to_a_hundredth() -> None:
    plan = Plan(out=Path("unused"), rate=1.0, warmup=10)
    assert rate_at(0.0, 0, plan) == pytest.approx(0.1)
    assert rate_at(0.0, 9, plan) == pytest.approx(1.0)
    assert rate_at(1.0, 99, plan) == pytest.approx(0.01)


def test_answers_fill_whole_canvases_with_eos() -> None:
    (one,) = canvases_of([70, 71], end=5)
    assert one == [70, 71, 5] + [1] * (CANVAS - 3)
    first, second = canvases_of([70] * CANVAS, end=5)
    assert first == [70] * CANVAS
    assert second == [5] + [1] * (CANVAS - 1)


def test_a_short_run_learns_and_writes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtin_recipe.examples.SHARD", 64)
    tokenizer = build_tokenizer(0)
    pools = build_pools(tokenizer, seed=1, rows={SHORT: 64}, processes=1)
    again = build_pools(tokenizer, seed=1, rows={SHORT: 64}, processes=1)
    assert (pools[SHORT].prefix == again[SHORT].prefix).all()
    assert pools[SHORT].prefix.shape == (64, SHORT)

    layers = ("sliding_attention", "full_attention")
    plan = Plan(out=tmp_path, rows=4, pool=64, hidden=64, layers=layers, checks=1)
    trainer = Trainer(plan, tokenizer, lambda _: None)
    steps = trainer.prepare()
    trainer.state.rate.fill_(4e-3)
    losses = [float(steps["short" if i % 3 else "long"]()) for i in range(24)]
    assert all(math.isfinite(x) for x in losses)
    assert sum(losses[-6:]) < 0.7 * sum(losses[:6])
    assert "stories" in trainer.check()

    trainer.write()
    model, report = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    stored = model.model.decoder.embed_tokens.weight.flatten()
    torch.testing.assert_close(stored, trainer.state.average[: stored.numel()], atol=1e-3, rtol=1e-3)
