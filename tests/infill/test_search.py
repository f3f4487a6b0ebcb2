"""Fillings: what is given comes back unchanged, whatever the model; the built-in checkpoint fills what it knows."""

from __future__ import annotations

import pytest
from tiny import tiny_checkpoint

import dgen
from dgen.errors import ContextError, DgenError, UsageError
from dgen.infill.search import infill
from dgen.infill.template import Gap, Template, parse_template
from dgen.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("infill") / "tiny", seed=0, canvas_length=16, window=8)
    return dgen.load(str(folder), device="cpu", slots=4)


@pytest.fixture(scope="module")
def builtin():
    return dgen.load("builtin", device="cpu", slots=8)


def test_a_fact_is_completed_backwards_with_its_length_found(builtin):
    found = infill(builtin, parse_template("The capital of {{4}} is Paris."), seed=1)
    best = found.fillings[0]
    assert best.text == "The capital of France is Paris."
    assert best.fills == ("France",)
    assert len(best.ids[0]) == 1
    assert best.gap_logprob > -1
    assert best.gap_logprob >= best.score


def test_several_fillings_differ_and_come_in_the_order_of_their_scores(builtin):
    found = infill(builtin, parse_template("A {{3}} lives in a {{3}}."), seed=1, n=3)
    assert len({f.text for f in found.fillings}) == len(found.fillings) > 1
    scores = [f.score for f in found.fillings]
    assert scores == sorted(scores, reverse=True)


def test_a_gap_at_the_end_is_ended_by_the_model(builtin):
    found = infill(builtin, parse_template("The opposite of hot is {{}}"), seed=1)
    assert found.fillings[0].text == "The opposite of hot is cold."


def test_an_instruction_makes_the_text_the_models_turn(builtin):
    template = parse_template("The capital of Peru is {{3}}.")
    found = infill(builtin, template, instruction="What is the capital of Peru?", seed=1)
    assert found.fillings[0].text == "The capital of Peru is Lima."


@pytest.mark.parametrize(
    "text",
    [
        "a cat {{2}} on the mat, then {{3}} and {{}} away.",
        "{{2}} café 🦊\n  the {{2}}\tx",
        "a cat sat on the mat. " * 6 + "{{2}} red fox {{3}}" + " the end of it all." * 6,
        "the {{70}} end",
    ],
)
def test_what_is_given_comes_back_unchanged_wherever_it_stands(builtin, text):
    template = parse_template(text)
    found = infill(builtin, template, seed=3, n=2, tries=2, steps=3, max_tokens=16)
    for filling in found.fillings:
        assert filling.text == template.filled(filling.fills)
        for gap, ids in zip(template.gaps, filling.ids, strict=True):
            assert len(ids) <= (gap.most or 16)
            pieces = b"".join(map(builtin.checkpoint.vocabulary.piece, ids)).decode()
            assert pieces.strip() in filling.text


def test_a_gap_that_the_model_would_end_the_text_in_stays_empty(builtin):
    found = infill(builtin, parse_template("The capital of France is Paris.{{1}} zzz \t#"), seed=1, steps=2)
    assert found.fillings[0].text.startswith("The capital of France is Paris.")
    assert found.fillings[0].text.endswith(" zzz \t#")


def test_a_model_that_writes_no_text_is_a_failure_with_a_hint(tiny, monkeypatch):
    monkeypatch.setattr("dgen.infill.search.fill_text", lambda *args, **options: None)
    with pytest.raises(DgenError, match="no filling was found") as caught:
        infill(tiny, parse_template("a cat {{1}} on"), seed=1, steps=2)
    assert "--tries" in caught.value.hint


def test_a_text_of_control_tokens_alone_is_no_filling(tiny, monkeypatch):
    # All that is written is dropped, and within the budget no end comes: nothing is left that could be scored.
    monkeypatch.setattr(Vocabulary, "is_special", lambda self, token_id: True)
    with pytest.raises(DgenError, match="no filling was found"):
        infill(tiny, parse_template("{{}}"), seed=1, steps=2, max_tokens=3)


def test_the_same_seed_gives_the_same_fillings(tiny):
    template = parse_template("a cat {{1}} on the {{2}}.")
    first, again, other = (
        infill(tiny, template, seed=seed, n=3, tries=24, steps=3).fillings for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_exact_lengths_are_kept(builtin):
    template = Template(("a cat ", " on the mat."), (Gap(3, 3),))
    assert [len(f.ids[0]) for f in infill(builtin, template, seed=1, n=3, steps=3).fillings] == [3] * 3


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        ("a <eos> {{2}}", {}, UsageError),
        ("a <|turn>user {{2}}", {}, UsageError),
        ("a \ud800 {{2}}", {}, UsageError),
        ("a {{2}} b", {"system": "Be brief."}, UsageError),
        ("a {{4096}} b", {}, ContextError),
    ],
)
def test_what_cannot_be_filled_is_refused(tiny, text, options, error):
    with pytest.raises(error) as caught:
        infill(tiny, parse_template(text), seed=1, **options)
    assert caught.value.hint
