"""Several turns: what the next prompt holds, that a held prefix changes nothing, and what failure leaves behind."""

from __future__ import annotations

import pytest
from tiny import tiny_checkpoint

import dgen
from dgen.chat.conversation import Conversation
from dgen.engine.events import Denoised, Finished, Prefilled
from dgen.errors import ContextError, SettingsError, UsageError
from dgen.settings import Layer

ASK = {"seed": 3, "max_tokens": 16, "steps": 6}
QUESTIONS = ("a cat sat on the hat", "is it red?", "no. the sun was in the sky, and we run to it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("chat") / "tiny", seed=0, canvas_length=8, window=8)


@pytest.fixture(scope="module")
def model(folder):
    """A model whose engine holds a prefix."""
    model = dgen.load(folder, device="cpu", slots=2, **ASK)
    model.engine.hold_prefix()
    return model


@pytest.fixture
def talk(model):
    return Conversation(model)


def say(talk, turn):
    """The events of a turn that ends well."""
    events = list(talk.run(turn))
    assert isinstance(events[-1], Finished)
    assert events[-1].completion.finish_reason in ("eos", "length", "stop")
    return events


def from_scratch(folder, turn, messages, **settings):
    """Events of the same turn in a model that has seen nothing before."""
    fresh = dgen.load(folder, device="cpu", **settings)
    job = fresh.job(messages=messages, seed=turn.job.request.seed, **ASK_BUT_SEED)
    return list(fresh.run(job))


ASK_BUT_SEED = {name: value for name, value in ASK.items() if name != "seed"}


def assert_same(held, scratch, *, within):
    for one, other in zip(held, scratch, strict=True):
        if isinstance(one, Denoised):
            assert one.draft == other.draft
            assert one.accepted == other.accepted
            assert one.entropy == pytest.approx(other.entropy, abs=within)
    ids = [[token.token_id for token in events[-1].completion.tokens] for events in (held, scratch)]
    assert ids[0] == ids[1]
    assert held[-1].completion.steps == scratch[-1].completion.steps


def test_turns_from_the_held_prefix_are_those_from_scratch(talk, folder):
    talk.system = "we are a cat"
    before = None
    for question in QUESTIONS:
        turn = talk.ask(question)
        messages = [
            {"role": "system", "content": talk.system},
            *talk.messages,
            {"role": "user", "content": question},
        ]
        held = say(talk, turn)
        # All that the turn before had read, but for what asks for its answer.
        assert turn.reused == (before.job.request.hold if before else 0)
        assert next(event.reused for event in held if isinstance(event, Prefilled)) == turn.reused
        scratch = from_scratch(folder, turn, messages)
        assert_same(held, scratch, within=1e-5)
        before = turn
    assert len(before.job.request.prompt_ids) > before.reused > 60


@pytest.mark.usefixtures("interpreter")
def test_the_same_in_the_fused_denoiser(tmp_path):
    folder = tiny_checkpoint(tmp_path / "tiny", seed=0, canvas_length=2, window=4, layers="sf", vocab=460)
    few = {"max_tokens": 2, "steps": 2}
    model = dgen.load(folder, device="cpu", denoiser="fused", slots=2, max_context=128, **few)
    model.engine.hold_prefix()
    talk = Conversation(model)
    say(talk, talk.ask("a"))
    turn = talk.ask("cat")
    messages = [*talk.messages, {"role": "user", "content": "cat"}]
    held = say(talk, turn)
    assert turn.reused > 4
    fresh = dgen.load(folder, device="cpu", denoiser="fused", max_context=128, **few)
    assert_same(held, list(fresh.run(fresh.job(messages=messages, seed=turn.job.request.seed))), within=1e-4)


@pytest.mark.gpu
def test_the_same_on_the_card_with_graphs():
    settings = {"device": "cuda", "dtype": "float32", "denoiser": "fused"}
    model = dgen.load("builtin", slots=2, **settings)
    model.engine.hold_prefix()
    model.engine.prepare()
    talk = Conversation(model)
    fresh = dgen.load("builtin", **settings)
    for question in ("Tell me a story about a brave fox.", "What is 7 plus 5?", "And 7 plus 6?"):
        turn = talk.ask(question)
        messages = [*talk.messages, {"role": "user", "content": question}]
        say(talk, turn)
        alone = fresh.generate(messages=messages, seed=turn.job.request.seed)
        assert alone.text == turn.job.text.answer
    assert turn.reused > 100


def test_only_what_is_new_is_read(talk, model, monkeypatch):
    read = []
    extend = model.denoiser.extend
    monkeypatch.setattr(
        model.denoiser, "extend", lambda slot, ids: (read.append(len(ids)), extend(slot, ids))[1]
    )
    say(talk, talk.ask(QUESTIONS[2]))
    first = sum(read)
    read.clear()
    turn = talk.ask("yes")
    say(talk, turn)
    assert sum(read) == turn.prompt_tokens - turn.reused < turn.prompt_tokens - first / 2


def test_thoughts_are_shown_and_left_out_of_what_follows():
    model = dgen.load("builtin", device="cpu", slots=2, think=True, seed=1)
    model.engine.hold_prefix()
    talk = Conversation(model)
    turn = talk.ask("What is 7 plus 5?")
    say(talk, turn)
    assert "7 + 5 = 12" in turn.job.text.reasoning
    assert talk.messages == [
        {"role": "user", "content": "What is 7 plus 5?"},
        {"role": "assistant", "content": turn.job.text.answer},
    ]
    assert "7 + 5" not in turn.job.text.answer
    second = talk.ask("And 7 plus 6?")
    say(talk, second)
    assert second.reused == turn.job.request.hold > 20
    decoded = model.checkpoint.tokenizer.decode(second.job.request.prompt_ids)
    assert turn.job.text.answer in decoded
    assert "7 + 5" not in decoded
    assert talk.context < second.prompt_tokens + len(second.job.completion.tokens)


def test_thinking_may_be_switched_between_turns():
    model = dgen.load("builtin", device="cpu", slots=2, seed=1)
    model.engine.hold_prefix()
    talk = Conversation(model)
    say(talk, talk.ask("What is 7 plus 5?"))
    talk.change(Layer("/set", {"think": "true"}))
    turn = talk.ask("And 7 plus 6?")
    say(talk, turn)
    assert turn.reused == 0  # the switch stands before all that was said
    assert turn.job.text.reasoning


def cut_short(talk, turn, model):
    """Run a turn that is interrupted at its first step."""
    for event in talk.run(turn):
        if isinstance(event, Denoised):
            model.engine.interrupt()
    assert event.completion.finish_reason == "interrupted"


def test_a_cancelled_turn_changes_nothing_and_may_be_asked_again(talk, model):
    say(talk, talk.ask(QUESTIONS[0]))
    before = list(talk.messages)
    turn = talk.ask(QUESTIONS[1])
    cut_short(talk, turn, model)
    assert talk.messages == before
    assert talk.unanswered == QUESTIONS[1]
    again = talk.retry()
    assert again.job.request.prompt_ids == turn.job.request.prompt_ids
    assert again.job.request.seed != turn.job.request.seed
    say(talk, again)
    assert talk.messages[:2] == before
    assert talk.messages[2]["content"] == QUESTIONS[1]
    assert talk.unanswered is None


def test_a_retry_takes_the_place_of_the_last_answer_unless_it_is_cancelled(talk, model):
    first = talk.ask(QUESTIONS[0])
    say(talk, first)
    before = list(talk.messages)
    cut_short(talk, talk.retry(), model)
    assert talk.messages == before
    assert talk.unanswered is None
    again = talk.retry()
    say(talk, again)
    assert again.reused == first.job.request.hold
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    assert talk.messages[1]["content"] == again.job.text.answer != first.job.text.answer


def test_a_turn_that_is_given_up_halfway_leaves_the_model_usable(talk):
    events = talk.run(talk.ask(QUESTIONS[0]))
    next(events)
    events.close()
    assert talk.messages == []
    assert talk.unanswered == QUESTIONS[0]
    say(talk, talk.retry())
    assert len(talk.messages) == 2


def test_a_given_seed_is_the_first_turns_and_counts_up(talk, model):
    assert [talk.ask("a").job.request.seed, talk.ask("a").job.request.seed] == [3, 4]
    talk.change(Layer("/set", {"seed": str(2**63 - 1)}))
    assert [talk.ask("a").job.request.seed, talk.ask("a").job.request.seed] == [2**63 - 1, 0]
    talk.change(Layer("/set", {"seed": "none"}))
    assert talk.ask("a").job.request.seed != talk.ask("a").job.request.seed


def test_settings_change_between_turns_and_are_restored(talk):
    talk.change(Layer("/set", {"steps": "2"}))
    talk.change(Layer("/set", {"t_max": "0.5"}))
    talk.change(Layer("/set", {"greedy": "true"}))
    request = talk.ask("a").job.request
    assert (request.steps, request.t_max, request.t_min) == (2, 0, 0)
    with pytest.raises(SettingsError, match="greedy"):
        talk.change(Layer("/set", {"t_max": "0.5"}))
    talk.restore("greedy")
    assert talk.ask("a").job.request.t_max == 0.5  # as it was set before
    talk.restore("steps")
    assert talk.ask("a").job.request.steps == ASK["steps"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("steps", "many", "whole number"),
        ("stepz", "3", "unknown setting 'stepz'"),
        ("model", "x", "model belongs to the model that is loaded"),
    ],
)
def test_a_setting_that_does_not_hold_is_refused_and_changes_nothing(talk, name, value, said):
    with pytest.raises(SettingsError, match=said):
        talk.change(Layer("/set", {name: value}))
    assert talk.changes == []


def test_a_full_context_is_refused_with_a_way_out(talk):
    say(talk, talk.ask(QUESTIONS[0]))
    before = list(talk.messages)
    with pytest.raises(ContextError, match=r"the conversation is full: .* positions") as caught:
        talk.ask("a cat " * 300)
    assert "/clear" in caught.value.hint
    assert talk.messages == before
    say(talk, talk.ask("yes"))


def test_nothing_to_retry_is_said(talk):
    with pytest.raises(UsageError, match="no question"):
        talk.retry()


def test_clear_forgets_and_keeps_the_system_message(talk):
    talk.system = "we are a cat"
    say(talk, talk.ask("yes"))
    talk.clear()
    assert (talk.messages, talk.unanswered, talk.context) == ([], None, None)
    assert talk.system == "we are a cat"
    with pytest.raises(UsageError):
        talk.retry()
    assert talk.tally.turns == 1
