"""`dgen generate` as a person or a pipeline meets it: streams, exit codes, settings, records."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from dgen.output.schema import schema


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_text_goes_to_stdout_and_everything_else_to_stderr(dgen, checkpoint):
    done = dgen("generate", "-m", checkpoint, "--prompt", "a cat", "--max-tokens", 12, "--seed", 1)
    assert done.code == 0
    assert done.out.endswith("\n")
    assert "\x1b" not in done.out + done.err
    assert re.fullmatch(r"(eos|length) · \d+ tokens? .* · seed 1\n", done.err)


def test_the_default_model_is_named_and_so_is_the_real_one(dgen, checkpoint, monkeypatch):
    monkeypatch.setattr("dgen.checkpoint.source.BUILTIN_FOLDER", checkpoint, raising=False)
    done = dgen("generate", "--prompt", "hello", "--max-tokens", 4)
    assert done.code == 0
    assert "Built-in demo checkpoint" in done.err
    assert "google/diffusiongemma-26B-A4B-it" in done.err


def test_quiet_leaves_stderr_empty(dgen, checkpoint):
    assert dgen("generate", "-m", checkpoint, "-q", "--prompt", "a cat", "--max-tokens", 4).err == ""


def test_verbose_names_imports_settings_and_sources(dgen, checkpoint):
    err = dgen(
        "generate", "-m", checkpoint, "-v", "--prompt", "a cat", "--max-tokens", 4, "--set", "steps=5"
    ).err
    assert re.search(r"imports \d+\.\d+ s", err)
    assert "  steps = 5 (--set)" in err
    assert "  max_tokens = 4 (--max-tokens)" in err
    assert "  t_max = 0.8 (checkpoint)" in err
    assert "denoiser reference, sampler kernels torch" in err


def test_jsonl_is_a_line_a_token_and_a_closing_completion_that_all_validate(dgen, checkpoint):
    done = dgen(
        *("generate", "-m", checkpoint, "--prompt", "a cat", "--max-tokens", 13, "--seed", 4),
        *("--format", "jsonl", "--logprobs", 5, "--logprob-ids", "5,9"),
    )
    *tokens, completion = lines(done.out)
    validator = Draft202012Validator(schema())
    for record in [*tokens, completion]:
        validator.validate(record)
    assert [token["position"] for token in tokens] == list(range(len(tokens)))
    assert completion["usage"]["completion_tokens"] == len(tokens)
    assert completion["type"] == "completion"
    assert all(len(token["top_logprobs"]) == 5 for token in tokens)
    assert all([asked["token_id"] for asked in token["asked_logprobs"]] == [5, 9] for token in tokens)
    assert completion["settings"]["seed"] == completion["seed"] == 4


def test_json_holds_the_same_log_probabilities_as_jsonl(dgen, checkpoint):
    common = (
        "generate",
        "-m",
        checkpoint,
        "--prompt",
        "a cat",
        "--max-tokens",
        13,
        "--seed",
        4,
        "--logprobs",
        2,
    )
    (one,) = lines(dgen(*common, "--format", "json").out)
    *tokens, completion = lines(dgen(*common, "--format", "jsonl").out)
    Draft202012Validator(schema()).validate(one)
    strip = {"type", "id", "index"}
    assert one["logprobs"] == [
        {key: value for key, value in token.items() if key not in strip} for token in tokens
    ]
    assert (one["text"], one["settings_hash"]) == (completion["text"], completion["settings_hash"])


def test_a_drawn_seed_is_reported_and_repeats_the_run(dgen, checkpoint):
    common = ("generate", "-m", checkpoint, "--prompt", "a cat", "--max-tokens", 16, "--format", "json")
    (first,) = lines(dgen(*common).out)
    (again,) = lines(dgen(*common, "--seed", first["seed"]).out)
    assert again["text"] == first["text"]
    assert {lines(dgen(*common).out)[0]["seed"] for _ in range(3)} != {first["seed"]}


@pytest.mark.parametrize(
    ("argv", "code", "says", "hint"),
    [
        (["--prompt", ""], 2, "the prompt is empty", "--prompt"),
        ([], 2, "there is no prompt", "dgen generate"),
        (
            ["--prompt", "x", "--steps", "0"],
            2,
            "steps must be a whole number >= 1, not '0' (--steps)",
            "steps",
        ),
        (
            ["--prompt", "x", "--steps", "many"],
            2,
            "steps must be a whole number, not 'many' (--steps)",
            "steps",
        ),
        (["--prompt", "x", "--stepz", "3"], 2, "no such option: --stepz", "Did you mean --steps?"),
        (["--prompt", "x", "--temperature", "0.5"], 2, "no such option: --temperature", "--t-max"),
        (["--prompt", "x", "--repetition-penalty", "2"], 2, "no such option: --repetition-penalty", "canvas"),
        (["--prompt", "x", "--format", "xml"], 2, "--format must be one of", "text"),
        (["--prompt", "x", "--config", "nope"], 2, "no preset or file 'nope'", "careful"),
        (["--prompt", "x", "--set", "step=3"], 2, "unknown setting 'step'", "steps"),
        (
            ["--prompt", "x", "--greedy", "--t-max", "0.5"],
            2,
            "greedy (--greedy) is temperature 0",
            "Leave out",
        ),
        (["--prompt", "x", "--max-tokens", "100000"], 2, "positions; the context has 512", "--max-tokens"),
        (
            ["--prompt", "x", "--max-context", "8"],
            2,
            "a context of 8 positions holds no prompt",
            "give 9 and more",
        ),
        (["--prompt", "x", "--logprob-ids", "99999", "--format", "json"], 2, "99999 is no token id", "0 to"),
        (["--prompt", "x", "--prompt-file", "also.txt"], 2, "both --prompt and --prompt-file", "one"),
        (["--prompt-file", "/no/such/file"], 2, "/no/such/file", "path"),
        (["--prompt", "x", "--dtype", "float16"], 2, "float16", "bfloat16"),
        (["--prompt", "x", "--device", "cuda:99"], None, "cuda", "cpu"),
        (["--prompt", "x", "--raw", "--system", "y"], 2, "system", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_clear_line_and_a_hint(dgen, checkpoint, argv, code, says, hint):
    done = dgen("generate", "-m", checkpoint, *argv)
    assert done.out == ""
    error, advice = done.err.splitlines()
    assert error.startswith("Error: ")
    assert says in error
    assert advice.startswith("Hint: ")
    assert hint in advice
    assert done.code == code if code is not None else done.code in (2, 3)


def test_a_missing_checkpoint_is_exit_3(dgen, tmp_path):
    done = dgen("generate", "-m", tmp_path / "nowhere", "--prompt", "x")
    assert done.code == 3
    assert str(tmp_path / "nowhere") in done.err


def test_debug_shows_the_traceback(dgen, tmp_path):
    assert "Traceback" in dgen("generate", "-m", tmp_path / "nowhere", "--prompt", "x", "--debug").err


def test_a_prompt_of_one_emoji_and_of_any_script_works(dgen, checkpoint):
    for prompt in ("🦊", "日本語", "e\u0301", "\u202e", "a\x00b"):
        assert dgen("generate", "-m", checkpoint, "--prompt", prompt, "--max-tokens", 4).code == 0


def test_stop_ends_the_answer_before_the_text(dgen, checkpoint):
    common = (
        "generate",
        "-m",
        checkpoint,
        "--prompt",
        "a cat",
        "--max-tokens",
        24,
        "--seed",
        3,
        "--format",
        "json",
    )
    (whole,) = lines(dgen(*common).out)
    assert len(whole["text"]) > 3
    stop = whole["text"][2:4]
    (cut,) = lines(dgen(*common, "--stop", stop).out)
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]


@pytest.mark.usefixtures("interpreter")
def test_the_kernel_is_a_matter_of_speed_alone(dgen, checkpoint, monkeypatch):
    common = (
        "generate",
        "-m",
        checkpoint,
        "--prompt",
        "a cat",
        "--max-tokens",
        16,
        "--seed",
        2,
        "--format",
        "json",
    )
    (plain,) = lines(dgen(*common).out)
    monkeypatch.setenv("DGEN_KERNEL", "triton")
    (fused,) = lines(dgen(*common).out)
    assert fused["text"] == plain["text"]
    assert fused["usage"] == plain["usage"]


def test_environment_and_no_config(dgen, checkpoint, monkeypatch):
    monkeypatch.setenv("DGEN_STEPS", "3")
    common = ("generate", "-m", checkpoint, "--prompt", "a cat", "--max-tokens", 4, "--format", "json")
    assert lines(dgen(*common).out)[0]["settings"]["steps"] == 3
    assert lines(dgen(*common, "--no-config").out)[0]["settings"]["steps"] == 48
    assert lines(dgen(*common, "--steps", 5).out)[0]["settings"]["steps"] == 5


def test_schema_prints_a_schema(dgen):
    done = dgen("schema")
    assert (done.code, done.err) == (0, "")
    Draft202012Validator.check_schema(json.loads(done.out))


def test_version_and_help(dgen):
    assert re.fullmatch(r"dgen \d+\.\d+\.\d+\n", dgen("--version").out)
    for argv in (["--help"], ["generate", "--help"], ["schema", "--help"], ["bench", "--help"]):
        done = dgen(*argv)
        assert done.code == 0
        assert "dgen" in done.out


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (["generat"], "no such command 'generat'", "Did you mean dgen generate?"),
        (["doc"], "no such command 'doc'", "Did you mean dgen doctor?"),
        (["bench", "stp"], "no such command 'stp'", "Did you mean dgen bench step?"),
        (["trace", "x"], "no such command 'x'", "See dgen trace --help."),
        (
            ["Tell me a story"],
            "no such command 'Tell me a story'",
            'For a prompt: dgen generate --prompt "..."',
        ),
        (["-p", "hello"], "no such option: -p", 'It is an option of a command: dgen generate --prompt "..."'),
        (["generate", "--prompt"], "option '--prompt' requires an argument", "See dgen generate --help."),
        (
            ["bench", "step", "--batch"],
            "option '--batch' requires an argument",
            "See dgen bench step --help.",
        ),
        (["infill"], "there is no prompt", "For example: dgen infill --prompt"),
        (["choose", "-c", "a,b", "--answer", "x"], "the text has no gap to fill", "For example: --answer"),
        (
            ["generate", "-p", "a", "--stop", ""],
            "stop must be one or more non-empty texts, not '' (--stop)",
            "End the answer",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_slip_of_the_first_words_is_told_with_what_was_meant(dgen, argv, error, hint):
    done = dgen(*argv)
    assert (done.code, done.out) == (2, "")
    said, hinted = done.err.splitlines()
    assert said == f"Error: {error}"
    assert hinted.startswith(f"Hint: {hint}")


@pytest.mark.parametrize(
    "argv",
    [
        ["generate", "-p", "a", "--config", "~no-such-user/x.toml"],
        ["generate", "--prompt-file", "~no-such-user/x"],
        ["generate", "-p", "a", "--trace", "~no-such-user/x"],
        ["trace", "show", "~no-such-user/x"],
        ["bench", "--arch", "~no-such-user/x"],
        ["bench", "--compare", "~no-such-user/x"],
    ],
    ids=" ".join,
)
def test_a_home_folder_that_is_not_there_is_no_bug(dgen, argv):
    done = dgen(*argv)
    assert done.code == 2
    assert "'~no-such-user/x" in done.err
    assert "unexpected" not in done.err


@pytest.mark.parametrize(
    "argv",
    [
        ("generate", "--prompt", "a", "--trace", "no/such/folder/t.jsonl"),
        ("generate", "--prompt", "a", "--draft", "maybe"),
        ("generate", "--prompt", "a", "--max-tokens", 10**6),
        ("generate", "--prompt", "a", "--denoiser", "fused"),
        ("chat", "--load", "no-such-file.json"),
        ("chat", "--denoiser", "fused"),
        ("infill", "--prompt", "a {{2}} b", "--denoiser", "fused"),
        ("choose", "--answer", "a {{}}", "--choices", "b,c", "--denoiser", "fused"),
        ("bench", "step", "--denoiser", "fused"),
    ],
    ids=lambda argv: " ".join(map(str, argv)),
)
def test_an_error_stands_alone_where_nobody_named_a_model(dgen, monkeypatch, argv):
    monkeypatch.setattr("dgen.denoiser.fused.is_interpreted", lambda: False)
    done = dgen(*argv)
    assert done.code == 2
    assert "Built-in demo checkpoint" not in done.err
    assert "Error: " in done.err


@pytest.mark.parametrize(
    "failure",
    [MemoryError(), RuntimeError("[enforce fail] not enough memory: you tried to allocate 9 bytes")],
)
def test_a_cpu_that_runs_out_of_memory_is_no_bug(dgen, monkeypatch, failure):
    def fail(*_):
        raise failure

    monkeypatch.setattr("dgen.cli.generate.load_generator", fail)
    done = dgen("generate", "--prompt", "x")
    error, hint = done.err.splitlines()
    assert done.code == 1
    assert error.startswith("Error: out of memory: ")
    assert "bug" not in hint
