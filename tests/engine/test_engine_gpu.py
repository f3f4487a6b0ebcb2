"""The engine on a card: graphs, batches and steps that run ahead change nothing that a request says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import RELEASED_EOS, tiny_model

from dgen.denoiser.fused import FusedDenoiser
from dgen.engine.canvas import CanvasState
from dgen.engine.engine import Engine
from dgen.engine.events import Converged, Denoised, Finished
from dgen.engine.request import Request
from dgen.engine.steps import Steps
from dgen.sampler import kernels_for

pytestmark = pytest.mark.gpu
KERNELS = kernels_for("auto", torch.device("cuda")) if torch.cuda.is_available() else None

BASE = Request(
    prompt_ids=(2, 40, 50, 60, 70),
    eos_ids=frozenset(RELEASED_EOS),
    max_tokens=20,
    steps=12,
    entropy_bound=0.1,
    t_min=0.4,
    t_max=0.8,
    stability=1,
    confidence=0.005,
    seed=1,
    logprobs=3,
)
# As long as any other: neither confident nor ended by a token.
LASTING = replace(BASE, eos_ids=frozenset(), confidence=0.0, steps=6)


def made(dtype: torch.dtype):
    return tiny_model(seed=7, canvas_length=8, window=8, layers="ssf")[0].to("cuda").to(dtype)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def model(request):
    return made(request.param)


@pytest.fixture(scope="module")
def fp32_model():
    return made(torch.float32)


def engine_of(model, *, num_slots=1, graphs=True) -> Engine:
    denoiser = FusedDenoiser(model, num_slots=num_slots, graphs=graphs)
    return Engine(denoiser, kernels_for("auto", denoiser.device), graphs=graphs)


def run(engine, *requests):
    events = list(engine.run(requests))
    return events, {e.index: e.completion for e in events if isinstance(e, Finished)}


def prompt(seed: int, length: int) -> tuple[int, ...]:
    drawn = torch.randint(14, 400, (length,), generator=torch.Generator().manual_seed(seed))
    return tuple(drawn.tolist())


def mixed(n: int) -> list[Request]:
    """Requests of all kinds, which end at different times."""
    return [
        replace(
            BASE,
            prompt_ids=prompt(index, 1 + 5 * index),
            max_tokens=6 + 5 * index,
            steps=5 + index,
            seed=index,
            stability=index % 3,
            pins={index: 77} if index % 2 else {},
            logprobs_of="raw" if index % 2 else "tempered",
            logprob_ids=(33, 44) if index % 2 else (),
        )
        for index in range(n)
    ]


@pytest.mark.parametrize("num_slots", [1, 3])
def test_graphs_change_no_event(model, num_slots):
    # In three slots every batch is a bucket of its own, so that no product has another shape.
    requests = mixed(6)
    told: list[str] = []
    graphed = engine_of(model, num_slots=num_slots)
    graphed.prepare(told.append)
    assert told, "nothing was told"
    assert not [line for line in told if "eager" in line], told
    plain = run(engine_of(model, num_slots=num_slots, graphs=False), *requests)[0]
    assert run(graphed, *requests)[0] == plain
    assert run(graphed, *requests)[0] == plain, "the second run of an engine differs"


def test_what_a_step_sends_to_the_host_is_what_it_has_found(model):
    denoiser = FusedDenoiser(model, num_slots=3)
    state = CanvasState(3, denoiser.canvas_len, denoiser.vocab_size, denoiser.device, KERNELS)
    for slot in range(3):
        request = replace(LASTING, prompt_ids=prompt(slot, 5), seed=slot)
        denoiser.prefill(slot, torch.tensor(request.prompt_ids, device="cuda"))
        state.admit(slot, request)
    steps = Steps(state, denoiser, KERNELS, graphs=True)
    for slots in [[0], [0], [2, 1], [1, 2], [0, 1, 2], [0, 1, 2]] * 20:
        result = steps.run(slots, filtered=False)
        assert result.post is not None, "not captured"
        sent = result.post.receive()[: len(slots)]
        assert torch.equal(sent, result.packed.cpu())
    for first, second in [([0], [1]), ([0, 1, 2], [0, 1, 2])]:  # what is not received is sent over
        steps.run(first, filtered=False)
        result = steps.run(second, filtered=False)
        assert torch.equal(result.post.receive()[: len(second)], result.packed.cpu())


def test_strangers_in_the_batch_change_nothing(model):
    me = replace(LASTING, prompt_ids=prompt(50, 11), seed=50)
    engine = engine_of(model, num_slots=8)
    first = [replace(LASTING, prompt_ids=prompt(i, 1 + 4 * i), seed=i) for i in range(7)]
    second = [replace(LASTING, prompt_ids=prompt(i, 40 - 5 * i), seed=9 * i, t_max=0.6) for i in range(7)]
    alike = run(engine, me, *first)[1][0]
    assert alike.finish_reason == "length"
    assert len(alike.tokens) == me.max_tokens
    assert run(engine, me, *second)[1][0] == alike
    # In another slot and another place of the batch too.
    assert replace(run(engine, *second[:5], me, *second[5:])[1][5], index=0) == alike


def test_a_stop_changes_nothing_for_the_others(fp32_model):
    requests = [replace(LASTING, prompt_ids=prompt(i, 3 + 7 * i), seed=i) for i in range(3)]
    engine = engine_of(fp32_model, num_slots=3)
    plain = run(engine, *requests)[1]
    stopped = {}
    for event in engine.run(requests):
        if isinstance(event, Converged) and event.index == 1 and event.canvas == 0:
            engine.stop(1, 2)
        if isinstance(event, Finished):
            stopped[event.index] = event.completion
    assert stopped[1].finish_reason == "stop"
    assert stopped[1].tokens == plain[1].tokens[:2]
    for index in (0, 2):
        assert ids(stopped[index]) == ids(plain[index])


def ids(completion) -> list[int]:
    return [token.token_id for token in completion.tokens]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_an_interrupt_keeps_what_was_committed_and_the_engine_runs_on(fp32_model, graphs):
    requests = [replace(LASTING, prompt_ids=prompt(i, 3 + 7 * i), seed=i) for i in range(3)]
    engine = engine_of(fp32_model, num_slots=3, graphs=graphs)
    plain = run(engine, *requests)
    ended = {}
    for event in engine.run(requests):
        if isinstance(event, Denoised) and (event.canvas, event.step, event.index) == (1, 2, 1):
            engine.interrupt()
        if isinstance(event, Finished):
            ended[event.index] = event.completion
    assert set(ended) == {0, 1, 2}
    for index, completion in ended.items():
        assert completion.finish_reason == "interrupted"
        assert completion.tokens == plain[1][index].tokens[:8]
    assert run(engine, *requests) == plain


def test_filters_beside_a_plain_request_change_nothing_for_it(fp32_model):
    me = replace(LASTING, prompt_ids=prompt(50, 11), seed=50)
    mate = replace(LASTING, prompt_ids=prompt(1, 30), seed=3)
    engine = engine_of(fp32_model, num_slots=2)
    alike = run(engine, me, mate)[1][0]
    narrow = run(engine, me, replace(mate, top_k=3))[1]
    assert narrow[0] == alike
    assert all(sum(score > -1e9 for _, score in token.top) <= 3 for token in narrow[1].tokens)
    assert run(engine, me, replace(mate, top_p=0.5, top_k=9))[1][0] == alike


def test_a_deeper_history_after_the_capture(fp32_model):
    deep = [replace(BASE, stability=5, seed=i, prompt_ids=prompt(i, 9)) for i in range(3)]
    plain = run(engine_of(fp32_model, num_slots=2, graphs=False), *deep)[0]
    engine = engine_of(fp32_model, num_slots=2)
    engine.prepare()
    shallow = run(engine, *mixed(3))
    assert run(engine, *deep)[0] == plain
    assert run(engine, *mixed(3)) == shallow


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_out_of_memory_in_a_step_is_said_with_numbers_and_the_engine_runs_on(graphs):
    big = tiny_model(seed=7, canvas_length=64, window=8, vocab=150_000)[0].to("cuda")
    engine = engine_of(big, num_slots=4, graphs=graphs)
    requests = [replace(LASTING, max_tokens=64, steps=2, seed=i, logprobs=0) for i in range(4)]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        # Room for prompts, but not for a softmax of all canvases.
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 60e6) / total)
        _, done = run(engine, *requests)
        assert [completion.finish_reason for completion in done.values()] == ["error"] * 4
        assert done[0].out_of_memory
        assert "out of memory in a denoising step" in done[0].error
        assert "MiB" in done[0].error
        assert done[0].error_hint
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    again = run(engine, *requests)[1]
    assert [completion.finish_reason for completion in again.values()] == ["length"] * 4
    del engine, big
    torch.cuda.empty_cache()


def test_the_built_in_checkpoint_answers_alike_on_both_denoisers():
    import dgen

    prompts = [
        *(
            "Tell me a story about a brave fox.",
            "Tell me a story about an old owl.",
            "Hello!",
            "Who are you?",
        ),
        *("Tell me a long story about a whale.", "What can you do?", "Tell me a story.", "What is a fox?"),
        *(
            "Tell me a short story about a cat.",
            "Thank you.",
            "Count to ten.",
            "Tell me about a small mouse.",
        ),
    ]
    texts = {}
    for name in ("fused", "reference"):
        generator = dgen.load(device="cuda", dtype="float32", denoiser=name, seed=4)
        assert generator.runtime["denoiser"] == name
        texts[name] = [generator.generate(prompt).text for prompt in prompts]
    assert all(texts["fused"])
    assert texts["fused"] == texts["reference"]
