"""`dgen infill` and `dgen choose` as a person or a pipeline meets them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from dgen.output.fillings import choose_schema, infill_schema

CAPITAL = ("infill", "--seed", 1, "--prompt", "The capital of {{2}} is Paris.")


def test_the_filled_text_goes_to_stdout_and_the_score_to_stderr(dgen):
    done = dgen(*CAPITAL)
    assert (done.code, done.out) == (0, "The capital of France is Paris.\n")
    assert "Built-in demo checkpoint" in done.err
    assert "decoder passes" in done.err
    assert dgen(*CAPITAL, "-q").err == ""


def test_several_fillings_are_ranked_lines_and_records_that_validate(dgen):
    done = dgen(*CAPITAL, "--n", 2)
    scores = [float(line.split()[0]) for line in done.out.splitlines()]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 2
    validator = Draft202012Validator(infill_schema())
    whole = json.loads(dgen(*CAPITAL, "--n", 2, "--format", "json").out)
    *lines, closing = map(json.loads, dgen(*CAPITAL, "--n", 2, "--format", "jsonl").out.splitlines())
    for record in (whole, *lines, closing):
        validator.validate(record)
    assert whole["fillings"] == lines
    assert closing["fillings"] is None
    best = lines[0]
    gap = best["gaps"][0]
    assert best["text"][gap["start"] : gap["end"]] == gap["text"] == "France"
    assert [line["rank"] for line in lines] == [1, 2]


def test_a_draft_keeps_what_is_outside_its_spans(dgen, tmp_path):
    draft = tmp_path / "draft.txt"
    draft.write_text("The opposite of hot is wrong.\n", encoding="utf-8")
    done = dgen("infill", "--draft-file", draft, "--span", "23:28", "--seed", 1, "-q")
    assert done.out == "The opposite of hot is cold.\n"
    again = dgen("infill", "--draft-file", draft, "--renoise", 0.2, "--seed", 1, "-q", "--format", "json")
    record = json.loads(again.out)["fillings"][0]
    assert len(record["gaps"]) == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--prompt", "no gap"), "no gap"),
        (("--prompt", "a {{4 b"), "not closed"),
        (("--prompt", "a {{0}} b"), "from 1 to"),
        (("--prompt", "a {{1}}", "--n", 0), "--n must be"),
        (("--prompt", "a {{1}}", "--tries", "x"), "--tries must be"),
        (("--prompt", "a {{1}}", "--format", "xml"), "--format must be"),
        (("--prompt", "a {{1}}", "--renoise", 0.4), "need a draft"),
        (("--prompt", "a {{1}}", "--steps", 0), "steps must be"),
        (("--draft-file", "/nowhere", "--renoise", 0.4), "can't read"),
        (("--draft-file", "DRAFT"), "which part"),
        (("--draft-file", "DRAFT", "--renoise", 0.4, "--span", "0:1"), "both --renoise and --span"),
        (("--draft-file", "DRAFT", "--renoise", "2"), "--renoise must be"),
        (("--draft-file", "DRAFT", "--span", "5"), "--span takes"),
        (("--draft-file", "DRAFT", "--span", "0:" + "9" * 5000), "--span takes"),
        (("--draft-file", "DRAFT", "--span", "4:1"), "the span 4:1 ends before it begins"),
        (("--draft-file", "DRAFT", "--span", "40:10"), "ends before it begins"),
        (("--draft-file", "DRAFT", "--span", "4:4"), "the span 4:4 is empty"),
        (("--draft-file", "DRAFT", "--span", "4:99"), "the draft, which has 9 characters"),
        (("--draft-file", "DRAFT", "--span", "0:3", "--span", "2:5"), "overlap"),
        (("--draft-file", "DRAFT", "--span", "-1:3"), "--span takes"),
        (("--draft-file", "BLANK", "--renoise", 0.4), "no word to renoise"),
        (("--draft-file", "DRAFT", "--prompt", "{{1}}"), "both a draft and a prompt"),
        ((), "no prompt"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_loaded(dgen, tmp_path, monkeypatch, argv, says):
    monkeypatch.setattr("dgen.generator.from_layers", lambda *args, **options: pytest.fail("loaded"))
    draft = tmp_path / "draft.txt"
    draft.write_text("some text", encoding="utf-8")
    blank = tmp_path / "blank.txt"
    blank.write_text(" .\n", encoding="utf-8")
    done = dgen("infill", *({"DRAFT": draft, "BLANK": blank}.get(arg, arg) for arg in argv))
    assert done.code == 2
    assert says in done.err
    assert "Hint:" in done.err
    assert done.out == ""


COAL = ("choose", "--seed", 1, "--answer", "Coal is {{}}.", "--choices", "white, black,red")


def test_choices_are_a_table_or_one_record_that_validates(dgen):
    done = dgen(*COAL, "--prompt", "What colour is coal?")
    first, *others = (line.split() for line in done.out.splitlines())
    assert first[1] == "black"
    assert [line[1] for line in others] != []
    assert "of the model's probability" in done.err
    record = json.loads(dgen(*COAL, "--format", "json").out)
    Draft202012Validator(choose_schema()).validate(record)
    assert record["best"] == "black"
    assert sum(choice["probability"] for choice in record["choices"]) == pytest.approx(1)
    exact = json.loads(dgen(*COAL, "--exact", "--passes", 1, "--format", "json").out)
    assert exact["exact"]
    assert exact["best"] == "black"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--prompt", "x"), "no choices"),
        (("--prompt", "x", "--choices", "a"), "1 choice"),
        (("--prompt", "x", "--choices", "a,,b"), "empty"),
        (("--prompt", "x", "--choices", "a,b", "--choice", "a"), "given twice"),
        (("--choices", "a,b"), "no prompt"),
        (("--prompt", "x", "--choices", "a,b", "--passes", 0), "--passes must be"),
        (("--prompt", "x", "--choices", "a,b", "--format", "jsonl"), "--format must be"),
        (("--prompt", "x", "--choices", "a,b", "--answer", "x"), "no gap"),
        (("--prompt", "x", "--choices", "a,b", "--answer", "It is {{2}}."), "the gap {{2}} in --answer"),
    ],
)
def test_wrong_choices_are_refused_before_anything_is_loaded(dgen, monkeypatch, argv, says):
    monkeypatch.setattr("dgen.generator.from_layers", lambda *args, **options: pytest.fail("loaded"))
    done = dgen("choose", *argv)
    assert done.code == 2
    assert says in done.err
    assert "Hint:" in done.err


@pytest.mark.parametrize(("flag", "title"), [("--infill", "dgen infill"), ("--choose", "dgen choose")])
def test_the_schemas_are_printed(dgen, flag, title):
    printed = json.loads(dgen("schema", flag).out)
    Draft202012Validator.check_schema(printed)
    assert printed["title"] == title
    assert dgen("schema", flag, "--trace").code == 2


@pytest.mark.parametrize("command", ["generate", "choose", "infill"])
def test_a_text_that_takes_long_to_encode_is_announced_and_one_beyond_the_context_refused(
    dgen, checkpoint, tmp_path, command
):
    long = tmp_path / "long.txt"
    long.write_text("a cat sat " * 110_000 + ("{{1}}" if command == "infill" else ""))
    argv = [command, "-m", checkpoint, "--prompt-file", long, *(["-c", "a,b"] if command == "choose" else [])]
    done = dgen(*argv)
    assert done.code == 2
    assert "encoding a text of 1.1 million characters" in done.err
    assert "the context has 512" in done.err
    quiet = dgen(*argv, "-q")
    assert [line.split()[0] for line in quiet.err.splitlines()] == ["Error:", "Hint:"]
    assert "encoding" not in dgen("generate", "-m", checkpoint, "--prompt", "a cat", "--max-tokens", 8).err
