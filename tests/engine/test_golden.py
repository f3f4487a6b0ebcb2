"""The engine on the reference denoiser against transformers' own eager `generate`.

dgen runs first and its draws and random ids are recorded; then transformers runs with those injected. Equal
tokens, steps and acceptance masks, and bit-equal logits, over three canvases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from tiny import tiny_model
from transformers.models.diffusion_gemma import generation_diffusion_gemma as generation

from dgen.denoiser.reference import ReferenceDenoiser
from dgen.engine.engine import Engine
from dgen.engine.events import Denoised, Finished
from dgen.engine.request import Request
from dgen.sampler import kernels_for

CANVAS, WINDOW, CANVASES = 6, 8, 3
LENGTHS = sorted({1, 2, WINDOW - 1, WINDOW, WINDOW + 1, CANVAS - 1, CANVAS, CANVAS + 1, 3 * WINDOW})


@dataclass
class Recording:
    """What dgen's run drew and saw, in the order of its steps."""

    canvases: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    draws: list[torch.Tensor] = field(default_factory=list)
    events: list[Denoised] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


def record_dgen(model, request: Request) -> Recording:
    seen = Recording()
    denoiser = ReferenceDenoiser(model)
    plain = kernels_for("torch", "cpu")

    def row_stats(*args, **kwargs):
        result = plain.row_stats(*args, **kwargs)
        seen.draws.append(result[1].clone())
        return result

    def denoise(slots, canvas):
        logits = ReferenceDenoiser.denoise(denoiser, slots, canvas)
        seen.canvases.append(canvas.clone())
        seen.logits.append(logits.clone())
        return logits

    denoiser.denoise = denoise
    for event in Engine(denoiser, replace(plain, row_stats=row_stats)).run([request]):
        if isinstance(event, Denoised):
            seen.events.append(event)
        elif isinstance(event, Finished):
            assert event.completion.error is None
            seen.tokens = tuple(token.token_id for token in event.completion.tokens)
            seen.steps = event.completion.steps
    return seen


def replay_in_transformers(
    model, request: Request, seen: Recording, monkeypatch
) -> tuple[list[int], list, list, list]:
    """transformers' tokens, raw logits and acceptance masks a step, and steps a canvas."""
    # Initial canvas, then after each step the canvas that follows: dgen's own random ids where not accepted.
    after_each_step = []
    for step, event in enumerate(seen.events):
        if event.step == 0:
            after_each_step.append(seen.canvases[step])
        last = step + 1 == len(seen.events) or seen.events[step + 1].step == 0
        after_each_step.append(torch.zeros(1, CANVAS, dtype=torch.int64) if last else seen.canvases[step + 1])
    canvases, draws = iter(after_each_step), iter(seen.draws)
    logits, masks, steps = [], [], []

    def initialize_canvas(self, batch_size, device):
        return next(canvases)

    def multinomial(probs, num_samples):
        return next(draws)[:, None]

    plain_accept = generation.EntropyBoundSampler.accept_canvas
    plain_schedule = generation.LinearTemperatureScheduleLogitsProcessor.__call__

    def accept_canvas(self, *args, **kwargs):
        accepted = plain_accept(self, *args, **kwargs)
        masks.append(self.accepted_token_mask[0].tolist())
        return accepted

    def schedule(self, input_ids, scores, cur_step):
        if int(cur_step) == request.steps:
            steps.append(0)
        steps[-1] += 1
        logits.append(scores[0].clone())
        return plain_schedule(self, input_ids, scores, cur_step)

    monkeypatch.setattr(generation.EntropyBoundSampler, "initialize_canvas", initialize_canvas)
    monkeypatch.setattr(generation.EntropyBoundSampler, "accept_canvas", accept_canvas)
    monkeypatch.setattr(generation.LinearTemperatureScheduleLogitsProcessor, "__call__", schedule)
    monkeypatch.setattr(generation.torch, "multinomial", multinomial)
    config = generation.DiffusionGemmaGenerationConfig(
        max_new_tokens=request.max_tokens,
        max_denoising_steps=request.steps,
        sampler_config=generation.EntropyBoundSamplerConfig(entropy_bound=request.entropy_bound),
        t_min=request.t_min,
        t_max=request.t_max,
        stability_threshold=request.stability,
        confidence_threshold=request.confidence,
    )
    model.generation_config = config
    output = model.generate(torch.tensor([request.prompt_ids]), generation_config=config)
    return output.sequences[0, len(request.prompt_ids) :].tolist(), logits, masks, steps


def make_request(length: int, **changes) -> Request:
    prompt = torch.randint(14, 400, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    base = Request(
        prompt_ids=tuple(prompt),
        eos_ids=frozenset(),
        max_tokens=CANVASES * CANVAS,
        steps=10,
        entropy_bound=0.5,
        t_min=0.4,
        t_max=0.8,
        stability=1,
        confidence=0.4,
        seed=length + 11,
    )
    return replace(base, **changes)


def assert_same_as_transformers(model, request: Request, monkeypatch) -> Recording:
    seen = record_dgen(model, request)
    tokens, logits, masks, steps = replay_in_transformers(model, request, seen, monkeypatch)
    assert tuple(tokens) == seen.tokens
    assert tuple(steps) == seen.steps
    assert masks == [list(event.accepted) for event in seen.events]
    assert len(logits) == len(seen.logits)
    for theirs, ours in zip(logits, seen.logits, strict=True):
        assert torch.equal(theirs, ours)
    return seen


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("layers", ["sf", "ssf"])
def test_three_canvases_are_those_of_transformers_generate(length, layers, monkeypatch):
    model, _ = tiny_model(seed=1, canvas_length=CANVAS, window=WINDOW, layers=layers)
    seen = assert_same_as_transformers(model, make_request(length), monkeypatch)
    assert any(not all(event.accepted) for event in seen.events), (
        "a run that accepts all at once shows nothing"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"stability": 0},
        {"stability": 3},
        {"steps": 1},
        {"entropy_bound": 1e-6},
        {"confidence": 1e-9},
        {"t_min": 0.0, "t_max": 1.5},
    ],
    ids=str,
)
def test_every_rule_of_the_loop_agrees_with_transformers(changes, monkeypatch):
    model, _ = tiny_model(seed=2, canvas_length=CANVAS, window=WINDOW)
    assert_same_as_transformers(model, make_request(WINDOW + 1, **changes), monkeypatch)


def test_bfloat16_weights_agree_too(monkeypatch):
    model, _ = tiny_model(seed=3, canvas_length=CANVAS, window=WINDOW)
    assert_same_as_transformers(model.to(torch.bfloat16), make_request(5), monkeypatch)


def test_canvases_converge_both_ways(monkeypatch):
    model, _ = tiny_model(seed=1, canvas_length=CANVAS, window=WINDOW)
    seen = assert_same_as_transformers(model, make_request(9), monkeypatch)
    assert min(seen.steps) < 10, "no canvas became confident: the stop rule was never tried"
