"""The Python front door: seeds, stops across canvases, streams, and what a caller may do wrong."""

from __future__ import annotations

import pytest
from tiny import tiny_checkpoint

import dgen
from dgen.engine.events import Converged, Denoised, Finished
from dgen.errors import ContextError, SettingsError, UsageError
from dgen.output.text import Piece, TextStream


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("generator") / "tiny", seed=0, canvas_length=8, window=8)
    return dgen.load(str(folder), device="cpu")


ASK = {"seed": 3, "max_tokens": 24, "steps": 12}


def test_the_same_seed_gives_the_same_answer_after_others_and_in_another_engine(model):
    first = model.generate("a cat sat", **ASK)
    model.generate("red fox", seed=9, max_tokens=11, t_max=1.5, stability=3, top_k=5, logprobs=4)
    again = model.generate("a cat sat", **ASK)
    other = dgen.load(str(model.checkpoint.path), device="cpu").generate("a cat sat", **ASK)
    assert first.completion == again.completion == other.completion
    assert model.generate("a cat sat", **{**ASK, "seed": 4}).text != first.text


@pytest.mark.usefixtures("interpreter")
def test_the_kernel_under_the_interpreter_gives_the_same_text(model):
    fused = dgen.load(str(model.checkpoint.path), device="cpu", kernel="triton")
    assert fused.kernels.name == "triton"
    plain = model.generate("a cat sat", logprobs=2, **ASK).completion
    other = fused.generate("a cat sat", logprobs=2, **ASK).completion
    assert [t.token_id for t in plain.tokens] == [t.token_id for t in other.tokens]
    assert plain.steps == other.steps
    for a, b in zip(plain.tokens, other.tokens, strict=True):
        assert (a.rank, [i for i, _ in a.top]) == (b.rank, [i for i, _ in b.top])
        assert a.logprob == pytest.approx(b.logprob, abs=1e-5)


def test_a_seed_that_is_not_given_is_drawn_and_repeats_the_run(model):
    first = model.generate("a cat", max_tokens=16)
    assert first.record["seed"] == first.seed == first.record["settings"]["seed"]
    assert model.generate("a cat", max_tokens=16, seed=first.seed).text == first.text
    assert model.generate("a cat", max_tokens=16).seed != first.seed


def test_streamed_pieces_are_the_answer_and_events_tell_its_story(model):
    seen = list(model.stream("a cat sat", **ASK))
    pieces = [item for item in seen if isinstance(item, Piece)]
    whole = model.generate("a cat sat", **ASK)
    assert "".join(piece.text for piece in pieces if piece.channel == "answer") == whole.text
    assert tuple(token for piece in pieces for token in piece.tokens) == whole.completion.tokens
    assert isinstance(seen[-1], Finished)
    steps = sum(isinstance(item, Denoised) for item in seen)
    assert (
        steps
        == sum(item.steps for item in seen if isinstance(item, Converged))
        == sum(whole.completion.steps)
    )


@pytest.fixture(scope="module")
def long_answer(model):
    """An answer of several canvases, and the settings that repeat it."""
    for seed in range(30):
        settings = {"seed": seed, "max_tokens": 48, "steps": 12}
        answer = model.generate("a cat sat", **settings)
        if len(answer.completion.steps) > 3 and len(answer.text) > 12:
            return answer, settings
    raise AssertionError("no seed gives a long answer")


def test_a_stop_string_ends_the_work_and_its_rows_match_the_tokens_that_are_kept(model, long_answer):
    whole, settings = long_answer
    ended_early = 0
    for start in range(1, len(whole.text) - 3, 5):
        stop = whole.text[start : start + 3]
        cut = model.generate("a cat sat", stop=[stop], logprobs=1, **settings)
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.finish_reason == "stop"
        kept = cut.completion.tokens
        assert cut.record["usage"]["completion_tokens"] == len(kept) == len(cut.record["logprobs"])
        assert [t.token_id for t in kept] == [t.token_id for t in whole.completion.tokens[: len(kept)]]
        # At most the canvas that completes the match is computed after the last kept token's own.
        last = kept[-1].canvas if kept else 0
        assert len(cut.completion.steps) <= last + 2
        ended_early += len(cut.completion.steps) < len(whole.completion.steps)
    assert ended_early


def test_a_stop_string_that_never_comes_changes_nothing(model):
    assert (
        model.generate("a cat sat", stop="never to be seen", **ASK).text
        == model.generate("a cat sat", **ASK).text
    )


def test_messages_and_a_system_text_reach_the_template(model):
    direct = model.generate("a cat", system="be brief", **ASK).completion
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a cat"}]
    assert model.generate(messages=messages, **ASK).completion == direct
    assert model.generate("a cat", **ASK).completion.prompt_tokens < direct.prompt_tokens


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prompt": ""}, UsageError),
        ({}, UsageError),
        ({"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, UsageError),
        ({"prompt": "x", "steps": 0}, SettingsError),
        ({"prompt": "x", "temperature": 0.5}, SettingsError),
        ({"prompt": "x", "max_tokens": 10_000}, ContextError),
        ({"prompt": "a cat " * 300}, ContextError),
        ({"prompt": "x", "logprob_ids": [10**6]}, SettingsError),
        ({"prompt": "x", "stop": [""]}, SettingsError),
        ({"prompt": "x", "model": "other"}, SettingsError),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_before_any_work(model, options, error):
    with pytest.raises(error):
        model.generate(**options)


def test_prompt_and_canvases_may_fill_the_context_to_the_last_position(model):
    room = model.checkpoint.max_context
    prompt_tokens = model.generate("a cat", **ASK).completion.prompt_tokens
    most = (room - prompt_tokens) // 8 * 8
    model.job("a cat", max_tokens=most)
    with pytest.raises(ContextError):
        model.job("a cat", max_tokens=most + 1)


def test_an_abandoned_stream_leaves_the_model_usable(model):
    whole = model.generate("a cat sat", **ASK)
    stream = model.stream("red fox", **ASK)
    for _ in range(4):
        next(stream)
    stream.close()
    assert model.generate("a cat sat", **ASK).completion == whole.completion


def test_two_streams_at_once_are_refused(model):
    first = model.stream("red fox", **ASK)
    next(first)
    job = model.job("a cat sat", **ASK)
    with pytest.raises(UsageError, match="already running"):
        next(model.run(job))
    assert isinstance(list(first)[-1], Finished)
    assert isinstance(list(model.run(job))[-1], Finished)  # it was refused, not used up


def test_torchs_global_generator_is_left_alone(model):
    import torch

    state = torch.get_rng_state()
    model.generate("a cat sat", **ASK)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_is_free_as_soon_as_the_end_is_told(model):
    for item in model.stream("red fox", **ASK):
        if isinstance(item, Finished):
            assert model.generate("a cat sat", **ASK).finish_reason
            break


def test_an_interrupt_before_the_engine_has_taken_the_job_ends_it(model):
    model.engine.interrupt()
    answer = model.generate("a cat sat", **ASK)
    assert answer.finish_reason == answer.record["finish_reason"] == "interrupted"
    assert (answer.text, answer.completion.tokens, answer.completion.steps) == ("", (), ())
    assert model.generate("a cat sat", **ASK).finish_reason != "interrupted"


def test_a_kept_exception_leaves_the_model_usable(model, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TextStream, "push", fail)
        with pytest.raises(KeyboardInterrupt) as kept:
            model.generate("a cat sat", **ASK)
    assert kept.tb, "an interactive session keeps the last traceback, and with it every frame in it"
    assert model.generate("a cat sat", **ASK).finish_reason


def test_a_job_runs_once(model):
    job = model.job("a cat sat", **ASK)
    with pytest.raises(UsageError, match="not been run"):
        model.record(job)
    list(model.run(job))
    with pytest.raises(UsageError, match="already"):
        list(model.run(job))


def test_a_stop_that_becomes_certain_only_at_the_end_still_is_one(model, long_answer):
    whole, settings = long_answer
    tail = whole.text[-2:]
    if whole.text.index(tail) != len(whole.text) - 2:
        pytest.skip("the tail occurs earlier")
    # The longer string begins earlier and stays possible to the last, so the shorter one is decided at the end.
    answer = model.generate("a cat sat", stop=[tail[1:] + "\x00", whole.text[-3:] + "\x00", tail], **settings)
    assert answer.finish_reason == "stop"
    assert answer.text == whole.text[:-2]
    assert answer.completion.finish_reason == answer.record["finish_reason"]
    assert len(answer.completion.tokens) == answer.record["usage"]["completion_tokens"]


def test_tiny_temperatures_are_as_good_as_zero(model):
    cold = model.generate("a cat sat", **ASK, t_min=0, t_max=1e-38)
    assert cold.completion.error is None
    assert cold.text == model.generate("a cat sat", **ASK, t_min=0, t_max=1e-36).text


def test_what_python_callers_have_at_hand_is_understood(model):
    from pathlib import Path

    import torch

    loaded = dgen.load(Path(model.checkpoint.path), device="cpu", dtype=torch.float32)
    assert loaded.generate("a cat sat", **ASK).text == model.generate("a cat sat", **ASK).text
    with pytest.raises(UsageError, match="must be a text, not a number"):
        model.generate(5)
    assert "finish_reason=" in repr(model.generate("a cat", **ASK))


def test_settings_that_only_report_leave_the_hash_alone(model):
    plain = model.generate("a cat sat", **ASK).record
    told = model.generate("a cat sat", logprobs=3, logprob_ids=[5], **ASK).record
    other = model.generate("a cat sat", **{**ASK, "steps": 11}).record
    assert plain["settings_hash"] == told["settings_hash"] != other["settings_hash"]
    assert plain["runtime"] == {
        "device": "cpu",
        "dtype": "float32",
        "denoiser": "reference",
        "kernels": "torch",
    }


@pytest.mark.gpu
def test_a_card_answers_and_repeats_itself(model):
    card = dgen.load(str(model.checkpoint.path), device="cuda")
    assert (card.kernels.name, card.checkpoint.device.type) == ("triton", "cuda")
    first = card.generate("a cat sat", logprobs=2, **ASK)
    again = card.generate("a cat sat", logprobs=2, **ASK)
    assert first.completion == again.completion
    plain = model.generate("a cat sat", logprobs=2, **ASK).completion
    # Same noise on both devices: with logits equal to rounding, the first canvas is too.
    assert first.completion.tokens[0].token_id == plain.tokens[0].token_id
    assert first.completion.tokens[0].logprob == pytest.approx(plain.tokens[0].logprob, abs=1e-3)


@pytest.mark.gpu
def test_the_built_in_checkpoint_answers_on_a_card():
    card = dgen.load("builtin", device="cuda")
    assert card.generate("What is 7 plus 5?", seed=1).text == "7 plus 5 is 12."
    assert card.generate("What is the capital of France?", seed=1).text == "The capital of France is Paris."
