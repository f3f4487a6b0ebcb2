"""Our engine and transformers' generate on one clock."""

import pytest
import torch
from timed import CPU, request
from tiny import tiny_model

from dgen.bench.clocked import clocked
from dgen.bench.report import DGEN, TRANSFORMERS
from dgen.bench.runs import generate_options, run_dgen, run_transformers
from dgen.bench.subject import NEVER, Subject
from dgen.bench.timer import Timer
from dgen.errors import DgenError

TIMER = Timer(CPU)


def run(by, stand, requests):
    return run_dgen(stand, requests) if by == DGEN else run_transformers(stand.subject, TIMER, requests)[0]


BOTH = pytest.mark.parametrize("by", [DGEN, TRANSFORMERS])


@BOTH
@pytest.mark.parametrize("batch", [1, 2])
def test_steps_canvases_and_tokens_are_counted(by, batch, stand):
    found = run(by, stand, stand.subject.requests(batch=batch, prompt=5, tokens=13, steps=3))
    assert (found.by, found.batch, found.prompt_tokens) == (by, batch, 5)
    assert (found.steps, found.canvases, found.tokens) == (6, 2, 13 * batch)


@BOTH
def test_the_parts_of_a_run_make_its_whole(by, stand):
    found = run(by, stand, stand.subject.requests(batch=2, prompt=5, tokens=24, steps=2))
    assert found.prefill + found.denoise + found.commit == pytest.approx(found.total)
    assert min(found.prefill, found.denoise, found.commit) > 0


@BOTH
def test_a_single_canvas_is_never_committed(by, stand):
    found = run(by, stand, stand.subject.requests(batch=1, prompt=5, tokens=8, steps=2))
    assert (found.canvases, found.commit) == (1, 0)


def test_a_second_run_of_the_same_engine_is_clocked_anew(stand):
    requests = stand.subject.requests(batch=2, prompt=5, tokens=16, steps=1)
    assert run_dgen(stand, requests).canvases == run_dgen(stand, requests).canvases == 2


def test_the_global_generator_is_left_alone(stand):
    state = torch.get_rng_state()
    requests = stand.subject.requests(batch=1, prompt=5, tokens=8, steps=2)
    for by in (DGEN, TRANSFORMERS):
        run(by, stand, requests)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_model_is_left_as_it_was(stand):
    model = stand.subject.model
    before = len(model.model.decoder.self_conditioning._forward_pre_hooks)
    with pytest.raises(KeyError), clocked(model, TIMER):
        raise KeyError
    assert not model.model.encoder._forward_pre_hooks
    assert not model.model.encoder._forward_hooks
    assert not model.model.decoder._forward_pre_hooks
    assert len(model.model.decoder.self_conditioning._forward_pre_hooks) == before
    assert "_prepare_encoder_inputs" not in vars(model)


def test_transformers_is_asked_for_what_the_request_asks_for(stand):
    model = stand.subject.model
    asked = request(
        steps=5, entropy_bound=0.3, t_min=0.1, t_max=0.9, stability=2, confidence=0.5, max_tokens=7
    )
    config, _ = model._prepare_generation_config(None, **generate_options(model, asked))
    assert config.max_denoising_steps == 5
    assert config.sampler_config.entropy_bound == 0.3
    assert (config.t_min, config.t_max) == (0.1, 0.9)
    assert (config.stability_threshold, config.confidence_threshold) == (2, 0.5)
    assert config.max_new_tokens == 7
    assert config.max_length is None
    assert config.eos_token_id == sorted(asked.eos_ids)
    assert model.generation_config.sampler_config.entropy_bound == 0.1


def test_a_model_without_a_generation_config_can_be_asked_too():
    bare = Subject(tiny_model(generation=False)[0], "bare")
    run, _ = run_transformers(bare, TIMER, [request(steps=2, confidence=NEVER, eos_ids=frozenset())])
    assert run.steps == 4


@pytest.mark.parametrize("changes", [{"top_k": 5}, {"top_p": 0.5}, {"pins": {0: 9}}, {"seed_canvas": (9,)}])
def test_what_transformers_cannot_do_is_not_asked(stand, changes):
    with pytest.raises(ValueError, match="no top-k"):
        generate_options(stand.subject.model, request(**changes))


def test_a_failure_of_ours_is_an_error(stand):
    stand.subject.model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(DgenError, match="not a distribution"):
        run_dgen(stand, stand.subject.requests(batch=1, prompt=5, tokens=8, steps=2))
