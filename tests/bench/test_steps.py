"""Our engine and transformers' generate on one clock."""

from dataclasses import replace

import pytest
import torch
from timed import CPU, request
from tiny import tiny_model

from dgen.bench.clocked import ClockedDenoiser, clocked
from dgen.bench.report import DGEN, TRANSFORMERS
from dgen.bench.steps import (
    generate_options,
    run_dgen,
    run_transformers,
    step_bytes,
    step_figure,
)
from dgen.bench.timer import Timer
from dgen.engine.engine import Engine
from dgen.engine.events import Finished
from dgen.errors import DgenError

TIMER = Timer(CPU)
NEVER = 1e-30  # mean entropy that no canvas falls below: every canvas takes all its steps


@pytest.mark.parametrize("run", [run_dgen, run_transformers])
def test_decoder_passes_and_canvases_are_counted(run, subject):
    found = run(TIMER, subject, "p", request(max_tokens=16, steps=3, confidence=NEVER, eos_ids=frozenset()))
    assert (found.steps, found.canvases, found.tokens) == (6, 2, 16)
    assert found.prompt_tokens == 5
    assert found.seed == 1


@pytest.mark.parametrize("run", [run_dgen, run_transformers])
def test_the_parts_of_a_run_make_its_whole(run, subject):
    found = run(TIMER, subject, "p", request(max_tokens=24, steps=2, confidence=NEVER, eos_ids=frozenset()))
    assert found.prefill + found.denoise + found.commit == pytest.approx(found.total)
    assert min(found.prefill, found.denoise, found.commit) > 0


@pytest.mark.parametrize("run", [run_dgen, run_transformers])
def test_a_single_canvas_is_never_committed(run, subject):
    found = run(TIMER, subject, "p", request(max_tokens=8, steps=2, confidence=NEVER, eos_ids=frozenset()))
    assert found.canvases == 1
    assert found.commit == 0


@pytest.mark.parametrize("run", [run_dgen, run_transformers])
def test_tokens_end_at_the_budget_and_with_the_first_eos(run, subject):
    everything = frozenset(range(480))
    assert run(TIMER, subject, "p", request(max_tokens=13, eos_ids=frozenset())).tokens == 13
    assert run(TIMER, subject, "p", request(max_tokens=13, eos_ids=everything)).tokens == 1


def test_our_passes_are_those_of_the_completion(subject):
    denoiser = ClockedDenoiser(subject.denoiser, TIMER)
    events = list(Engine(denoiser, subject.kernels).run([subject.requests[0][1]]))
    completion = next(event.completion for event in events if isinstance(event, Finished))
    assert denoiser.passes.denoising == sum(completion.steps)


def test_the_same_seed_repeats_both_bodies_and_the_global_generator_is_left_alone(subject):
    state = torch.get_rng_state()
    for run in (run_dgen, run_transformers):
        first, second = (run(TIMER, subject, "p", request(seed=9)) for _ in range(2))
        assert (first.steps, first.tokens) == (second.steps, second.tokens)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_model_is_left_as_it_was(subject):
    model = subject.model
    with pytest.raises(KeyError), clocked(model, TIMER):
        raise KeyError
    assert not model.model.encoder._forward_pre_hooks
    assert not model.model.encoder._forward_hooks
    assert not model.model.decoder._forward_pre_hooks
    assert "_prepare_encoder_inputs" not in vars(model)


def test_transformers_is_asked_for_what_the_request_asks_for(subject):
    asked = request(
        steps=5, entropy_bound=0.3, t_min=0.1, t_max=0.9, stability=2, confidence=0.5, max_tokens=7
    )
    options = generate_options(subject.model, asked)
    config, _ = subject.model._prepare_generation_config(None, **options)
    assert config.max_denoising_steps == 5
    assert config.sampler_config.entropy_bound == 0.3
    assert (config.t_min, config.t_max) == (0.1, 0.9)
    assert (config.stability_threshold, config.confidence_threshold) == (2, 0.5)
    assert config.max_new_tokens == 7
    assert config.max_length is None
    assert config.eos_token_id == sorted(asked.eos_ids)
    assert subject.model.generation_config.sampler_config.entropy_bound == 0.1


def test_a_model_without_a_generation_config_can_be_asked_too(subject):
    model, _ = tiny_model(generation=False)
    bare = replace(subject, model=model)
    assert run_transformers(TIMER, bare, "p", request(steps=2, confidence=NEVER)).steps in (2, 4)


@pytest.mark.parametrize("changes", [{"top_k": 5}, {"top_p": 0.5}, {"pins": {0: 9}}, {"seed_canvas": (9,)}])
def test_what_transformers_cannot_do_is_not_asked(subject, changes):
    with pytest.raises(ValueError, match="no top-k"):
        generate_options(subject.model, request(**changes))


def test_the_figure_holds_seconds_a_step_of_every_run(bench, subject):
    figure, runs = step_figure(replace(bench, repeats=2), subject)
    for by in (DGEN, TRANSFORMERS):
        mine = [run for run in runs if run.by == by]
        assert [(run.prompt, run.seed) for run in mine] == [
            ("first", 1),
            ("second", 2),
            ("first", 2),
            ("second", 3),
        ]
        assert figure.of(by).seconds == tuple(run.denoise / run.steps for run in mine)


def test_bodies_take_turns(bench, subject):
    told = []
    step_figure(replace(bench, repeats=2, progress=told.append), subject)
    turns = ["d" if ": dgen " in line else "t" for line in told]
    assert "".join(turns) == "dt" + "dt" + "td" + "td" + "dt"


def test_a_failure_of_transformers_is_told_and_ours_is_timed_all_the_same(bench, subject):
    constant = replace(subject, requests=[("p", request(t_min=0.5, t_max=0.5))])  # which transformers refuses
    figure, runs = step_figure(bench, constant)
    assert figure.of(TRANSFORMERS).skipped.startswith("generate failed: `t_max` must be")
    assert figure.of(TRANSFORMERS).seconds == ()
    assert len(figure.of(DGEN).seconds) == 1
    assert [run.by for run in runs] == [DGEN]


def test_a_failure_of_ours_is_an_error_with_the_prompt(bench, subject):
    subject.model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(DgenError, match=r"'first': .*not a distribution"):
        step_figure(bench, subject)


def test_the_floor_of_a_step_counts_the_weights_and_the_output_matrix_twice():
    for tied in (True, False):
        model, _ = tiny_model(tied=tied)
        decoder, head = model.model.decoder, model.lm_head.weight
        weights = sum(weight.numel() for weight in decoder.parameters())
        assert step_bytes(model) == 4 * (weights + head.numel() + 8 * 480)
