"""`dgen generate --input` as a person or a night's job meets it: kills, resumes, signals, streams, refusals."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dgen.cli.interruption import Terminated
from dgen.output.schema import schema

BASE = ("generate", "--max-tokens", "24", "--steps", "6", "--seed", "1")


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def records(path: Path) -> list[dict]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in data.decode().splitlines()]


def untimed(path: Path) -> dict[str, dict]:
    """Records by id, each of which is there once, without their times."""
    found = records(path)
    for record in found:
        del record["timing"]
    by_id = {record["id"]: record for record in found}
    assert len(by_id) == len(found)
    return by_id


@pytest.fixture
def prompts(tmp_path) -> Path:
    words = ("a cat", "red fox", "the sun", "tea")
    lines = [{"id": f"p{n}", "prompt": f"{words[n % 4]} {n}", "logprobs": n % 3} for n in range(10)]
    return write(tmp_path / "in.jsonl", lines)


def test_a_line_comes_back_for_a_line_and_validates(dgen, checkpoint, prompts, tmp_path):
    done = dgen(*BASE, "-m", checkpoint, "--input", prompts, "--output", tmp_path / "out.jsonl")
    assert (done.code, done.out) == (0, "")
    assert "10 done of 10" in done.err
    for record in records(tmp_path / "out.jsonl"):
        Draft202012Validator(schema()).validate(record)
    assert set(untimed(tmp_path / "out.jsonl")) == {f"p{n}" for n in range(10)}


def test_slots_order_compression_and_shards_change_no_record(dgen, checkpoint, prompts, tmp_path):
    common = (*BASE, "-q", "-m", checkpoint, "--input", prompts)
    assert dgen(*common, "--output", tmp_path / "one.jsonl", "--slots", 1).code == 0
    assert dgen(*common, "--output", tmp_path / "many.jsonl.gz", "--slots", 5, "--ordered").code == 0
    whole = untimed(tmp_path / "one.jsonl")
    assert untimed(tmp_path / "many.jsonl.gz") == whole
    assert [record["index"] for record in records(tmp_path / "many.jsonl.gz")] == list(range(10))
    parts = {}
    for shard in ("1/2", "2/2"):
        assert dgen(*common, "--output", tmp_path / "part.jsonl", "--shard", shard, "--overwrite").code == 0
        parts |= untimed(tmp_path / "part.jsonl")
    assert parts == whole


def test_a_line_is_what_the_single_command_gives_for_its_seed(dgen, checkpoint, prompts, tmp_path):
    dgen(*BASE, "-m", checkpoint, "--input", prompts, "--output", tmp_path / "out.jsonl")
    record = untimed(tmp_path / "out.jsonl")["p4"]
    single = (
        "generate",
        "-m",
        checkpoint,
        "--max-tokens",
        24,
        "--steps",
        6,
        "--seed",
        record["seed"],
        "--logprobs",
        1,
    )
    alone = json.loads(dgen(*single, "--prompt", "a cat 4", "--format", "json").out)
    for name in ("text", "usage", "logprobs", "seed", "settings", "settings_hash"):
        assert alone[name] == record[name]


def test_a_seed_that_is_not_given_is_kept_for_the_resume(dgen, checkpoint, tmp_path):
    source = write(tmp_path / "in.jsonl", [{"prompt": "a cat"}])
    common = (
        "generate",
        "-m",
        checkpoint,
        "--max-tokens",
        8,
        "--input",
        source,
        "--output",
        tmp_path / "out.jsonl",
    )
    assert dgen(*common).code == 0
    write(source, [{"prompt": "a cat"}, {"prompt": "a cat"}])
    done = dgen(*common)
    assert done.code == 0
    assert "1 done before" in done.err
    first, second = records(tmp_path / "out.jsonl")
    assert first["run_seed"] == second["run_seed"]
    assert first["seed"] != second["seed"]


def test_what_is_all_done_loads_no_model(dgen, checkpoint, prompts, tmp_path, monkeypatch):
    common = (*BASE, "-m", checkpoint, "--input", prompts, "--output", tmp_path / "out.jsonl")
    assert dgen(*common).code == 0
    monkeypatch.setattr("dgen.cli.batch._load", None)
    assert dgen(*common).code == 0


def test_another_dtype_is_refused_before_anything_is_loaded_or_dropped(
    dgen, checkpoint, tmp_path, monkeypatch
):
    source = write(tmp_path / "in.jsonl", [{"prompt": "a cat"}, {"prompt": "tea", "max_tokens": 5000}])
    common = (*BASE, "-m", checkpoint, "--input", source, "--output", tmp_path / "out.jsonl")
    assert dgen(*common).code == 4
    before = (tmp_path / "out.jsonl").read_bytes()
    monkeypatch.setattr("dgen.cli.batch._load", None)
    done = dgen(*common, "--dtype", "bf16")
    assert done.code == 2
    assert 'dtype was "float32" and is "bfloat16" now' in done.err
    assert "dtype fp16 is refused" in dgen(*common, "--dtype", "fp16").err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    write(source, [{"prompt": "a cat"}])
    assert dgen(*common, "--dtype", "fp32").code == 0


def test_failed_lines_are_records_exit_4_and_run_again(dgen, checkpoint, tmp_path):
    source = write(
        tmp_path / "in.jsonl", [{"id": 1, "prompt": "a cat"}, {"id": 2, "prompt": "tea", "max_tokens": 5000}]
    )
    common = (*BASE, "-m", checkpoint, "--input", source, "--output", tmp_path / "out.jsonl")
    done = dgen(*common)
    assert done.code == 4
    assert "line 2: " in done.err
    assert "positions" in untimed(tmp_path / "out.jsonl")[2]["error"]
    write(source, [{"id": 1, "prompt": "a cat"}, {"id": 2, "prompt": "tea"}])
    done = dgen(*common)
    assert done.code == 0
    assert "1 done before, 1 that failed to run again" in done.err
    assert untimed(tmp_path / "out.jsonl")[2]["error"] is None


def test_every_bad_line_is_named_before_anything_is_loaded(dgen, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'{"prompt":"a"}\n{"promt":"a"}\nNaN\n{"prompt":"\xff"}\n')
    done = dgen(
        "generate",
        "-m",
        "builtin",
        "--device",
        "nowhere",
        "--input",
        tmp_path / "in.jsonl",
        "--output",
        tmp_path / "o",
    )
    assert done.code == 2
    told = done.err.splitlines()
    assert [line.split(": ")[1] for line in told[:3]] == ["line 2", "line 3", "line 4"]
    assert "3 lines of" in told[3]
    assert not (tmp_path / "o").exists()


def test_a_hint_that_many_lines_share_is_given_once(dgen, checkpoint, tmp_path):
    bad = [{"prompt": "a", "steps": 0}, {"prompt": "b", "steps": 0}, {"prompt": "c", "t_max": -1}]
    common = ("generate", "-m", checkpoint, "--output", tmp_path / "out.jsonl", "--input")
    done = dgen(*common, write(tmp_path / "bad.jsonl", bad))
    kinds = [line.split(": ")[:2] for line in done.err.splitlines()]
    assert [words if words[0] == "Hint" else words[1] for words in kinds] == [
        "line 1",
        ["Hint", "Most denoising steps a canvas."],
        "line 2",
        "line 3",
        ["Hint", "Temperature of the first step."],
        f"3 lines of '{tmp_path / 'bad.jsonl'}' can't be used; nothing was run",
        ["Hint", "Correct or remove what is named above."],
    ]
    done = dgen(*common, write(tmp_path / "long.jsonl", [{"prompt": "a", "max_tokens": 5000}] * 2))
    told = [line for line in done.err.splitlines() if line.startswith(("Warning: line", "Hint"))]
    assert [line.split(": ")[0] for line in told] == ["Warning", "Hint", "Warning"]
    assert "Set --max-tokens to at most" in told[1]


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--input", "IN"], 2, "--input needs --output"),
        (["--output", "OUT"], 2, "--output needs --input"),
        (["--prompt", "x", "--slots", "2"], 2, "--slots needs --input"),
        (["--prompt", "x", "--shard", "1/2"], 2, "--shard needs --input"),
        (["--input", "IN", "--output", "OUT", "--prompt", "x"], 2, "--prompt does not go with --input"),
        *(
            (["--input", "IN", "--output", "OUT", *flag], 2, f"{flag[0]} does not go with --input")
            for flag in (
                ("--prompt-file", "-"),
                ("--prompt", ""),
                ("--format", "text"),
                ("--format", "json"),
                ("--format", "jsonl"),
                ("--draft", "on"),
                ("--slow", "0"),
                ("--trace", "t.jsonl"),
            )
        ),
        (["--input", "IN", "--output", "OUT", "--raw", "--system", "x"], 2, "needs the chat template"),
        (["--input", "IN", "--output", "OUT", "--shard", "3/2"], 2, "--shard must be like 2/4"),
        (["--input", "IN", "--output", "OUT", "--slots", "0"], 2, "slots must be a whole number >= 1"),
        (["--input", "IN", "--output", "OUT", "--steps", "0"], 2, "steps must be"),
        (["--input", "IN", "--output", "IN"], 2, "the same file"),
        (["--input", "IN", "--output", "/dev/null", "--ordered"], 2, "can't be put in order"),
        (["--input", "/no/such", "--output", "OUT"], 2, "can't read the input"),
        (["--input", "IN", "--output", "/no/such/out"], 2, "can't write to '/no/such/out'"),
        (["--input", "IN", "--output", "OTHER"], 2, "is no record of a batch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_is_one_line_and_a_hint(dgen, checkpoint, prompts, tmp_path, argv, code, says):
    (tmp_path / "other").write_text("my thesis\n")
    places = {"IN": prompts, "OUT": tmp_path / "out.jsonl", "OTHER": tmp_path / "other"}
    done = dgen("generate", "-m", checkpoint, *[places.get(word, word) for word in argv])
    assert done.code == code
    error, hint = done.err.splitlines()
    assert says in error
    assert hint.startswith("Hint: ")
    assert (tmp_path / "other").read_text() == "my thesis\n"


def test_other_settings_are_refused_by_name_and_overwrite_begins_anew(dgen, checkpoint, prompts, tmp_path):
    common = (*BASE, "-m", checkpoint, "--input", prompts, "--output", tmp_path / "out.jsonl")
    assert dgen(*common).code == 0
    done = dgen(*common, "--steps", 4)
    assert done.code == 2
    assert "steps was 6 and is 4 now" in done.err
    assert dgen(*common, "--steps", 4, "--overwrite").code == 0
    assert {record["settings"]["steps"] for record in records(tmp_path / "out.jsonl")} == {4}


def test_a_stream_is_run_as_it_comes_and_resumed(shell, tmp_path):
    run = '$DGEN generate -q -m "$MODEL" --max-tokens 8 --seed 1 --input - --output'
    lines = 'printf \'{"prompt":"a cat"}\\nnope\\n{"id":"x","prompt":"tea"}\\n\''
    done = shell(f"{lines} | {run} out.jsonl; echo $?; {lines} | {run} out.jsonl; echo $?", cwd=tmp_path)
    assert done.stdout.split() == ["4", "4"]
    assert set(untimed(tmp_path / "out.jsonl")) == {"1", "x", None}


def test_an_empty_stream_is_refused_as_an_empty_file_is(dgen, checkpoint, tmp_path, monkeypatch):
    (tmp_path / "in").touch()
    common = (*BASE, "-m", checkpoint, "--output", tmp_path / "out.jsonl", "--input")
    with monkeypatch.context() as patched:
        patched.setattr("dgen.cli.batch._load", None)
        for source, where in ((tmp_path / "in", f"in '{tmp_path / 'in'}'"), ("-", "on stdin")):
            done = dgen(*common, source)
            assert done.code == 2
            assert f"there is no prompt {where}" in done.err
            assert not (tmp_path / "out.jsonl").exists()
    os.mkfifo(tmp_path / "pipe")
    late = threading.Timer(0.1, (tmp_path / "pipe").write_bytes, [b"\n \n"])
    late.start()
    done = dgen(*common, tmp_path / "pipe")  # blank lines: not known to be empty before it is read
    late.join()
    assert done.code == 2
    assert "there is no prompt in" in done.err


def test_a_reader_that_leaves_ends_it_quietly(shell, prompts):
    run = f'$DGEN generate -q -m "$MODEL" --max-tokens 8 --input {prompts} --output -'
    done = shell(f"set -o pipefail; {run} | head -c 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_a_full_disk_is_said_once(dgen, checkpoint, prompts):
    done = dgen(*BASE, "-q", "-m", checkpoint, "--input", prompts, "--output", "/dev/full")
    assert (done.code, done.err.count("Error:")) == (1, 1)
    assert "No space left" in done.err


@pytest.mark.parametrize("output", ["-", "/dev/stdout", "/dev/fd/1"])
def test_stdout_may_be_the_output(dgen, checkpoint, prompts, output):
    done = dgen(*BASE, "-q", "-m", checkpoint, "--input", prompts, "--output", output)
    assert (done.code, done.err) == (0, "")
    assert {json.loads(line)["id"] for line in done.out.splitlines()} == {f"p{n}" for n in range(10)}


@pytest.mark.parametrize("source", ["in", "- < in"])
def test_stdout_is_not_led_into_the_input(shell, tmp_path, source):
    before = write(tmp_path / "in", [{"prompt": "a cat"}]).read_bytes()
    done = shell(f'$DGEN generate -m "$MODEL" --input {source} --output - >> in', cwd=tmp_path)
    assert done.returncode == 2
    assert "the same file" in done.stderr
    assert (tmp_path / "in").read_bytes() == before


def test_a_command_may_be_the_output_and_stdout_must_be_open(shell, tmp_path):
    write(tmp_path / "in", [{"prompt": "a cat"}])
    run = '$DGEN generate -q -m "$MODEL" --max-tokens 8 --input in --output'
    done = shell(f"{run} >(wc -l > lines); echo $?; wait $!; {run} - >&-; echo $?", cwd=tmp_path)
    assert done.stdout.split() == ["0", "1"]
    assert (tmp_path / "lines").read_text().strip() == "1"
    assert "standard output is closed" in done.stderr


# Never confident: each canvas takes all its steps.
SLOW = ("generate", "--max-tokens", "32", "--steps", "16", "--confidence", "0", "--seed", "1")


def start(checkpoint, source, output, *flags: str) -> subprocess.Popen:
    """A batch that takes its time, in a process of its own."""
    command = (sys.executable, "-m", "dgen", *SLOW, "-m", checkpoint, "--input", source, "--output", output)
    return subprocess.Popen(
        [str(word) for word in (*command, *flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DGEN_DEVICE": "cpu"},
    )


def wait_for_lines(path: Path, count: int) -> None:
    for _ in range(600):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no line came")


@pytest.mark.parametrize(
    ("ended", "code"), [(KeyboardInterrupt(), 130), (Terminated(signal.SIGTERM), 143)], ids=str
)
def test_a_signal_before_the_run_says_that_nothing_was_run(
    dgen, checkpoint, prompts, tmp_path, monkeypatch, ended, code
):
    output = tmp_path / "out.jsonl"
    output.write_text("my thesis\n")
    flags = [
        "generate",
        "-m",
        str(checkpoint),
        "--input",
        str(prompts),
        "--output",
        str(output),
        "--overwrite",
    ]

    def load(*args, **kwargs):
        raise ended

    monkeypatch.setattr("dgen.cli.batch._load", load)
    monkeypatch.setattr(sys, "argv", ["dgen", *flags])
    done = dgen(*flags)
    assert done.code == code
    assert done.err == f"Interrupted before anything was run. To run it: dgen {' '.join(flags)}\n"
    assert output.read_text() == "my thesis\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_is_done_and_tells_how_to_go_on(checkpoint, dgen, prompts, tmp_path, number):
    output = tmp_path / "out.jsonl"
    long = ("--steps", "48", "--max-tokens", "48")  # nobody is done before the signal is seen
    process = start(checkpoint, prompts, output, *long, "--slots", "2", "--overwrite")
    wait_for_lines(output, 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    (resume,) = [line for line in err.splitlines() if line.startswith("To resume: ")]
    assert "--overwrite" not in resume
    kept = records(output)
    assert 1 <= len(kept) < 10
    assert all(record["finish_reason"] in ("eos", "length") for record in kept)
    again = dgen(*SLOW, *long, "-m", checkpoint, "--input", prompts, "--output", output, "--slots", 3)
    assert again.code == 0
    assert records(output)[: len(kept)] == kept
    assert len(untimed(output)) == 10


def test_a_second_process_is_refused(checkpoint, prompts, tmp_path, dgen):
    output = tmp_path / "out.jsonl"
    process = start(checkpoint, prompts, output)
    wait_for_lines(output, 1)
    done = dgen(*BASE, "-m", checkpoint, "--input", prompts, "--output", output)
    assert done.code == 1
    assert "another process is writing to" in done.err
    process.kill()
    process.communicate()
    done = dgen("generate", "-m", checkpoint, "--input", prompts, "--output", output)
    assert "was made with other settings" in done.err  # the lock has gone with its process


def test_kills_at_random_moments_lose_and_double_nothing(checkpoint, dgen, tmp_path):
    source = write(tmp_path / "in.jsonl", [{"id": n, "prompt": f"a cat {n}"} for n in range(24)])
    common = (*SLOW, "-m", checkpoint, "--input", source)
    assert dgen(*common, "--output", tmp_path / "whole.jsonl", "--slots", 1).code == 0
    output, moments = tmp_path / "out.jsonl.gz", random.Random(0)
    for _ in range(3):
        process = start(checkpoint, source, output)
        before = output.stat().st_size if output.exists() else 0
        while process.poll() is None and (not output.exists() or output.stat().st_size <= before):
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        process.communicate()
    assert dgen(*common, "--output", output).code == 0
    assert untimed(output) == untimed(tmp_path / "whole.jsonl")


def test_the_built_in_checkpoint_is_named_once_the_run_goes_ahead(dgen, tmp_path):
    flags = ["generate", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"]
    write(tmp_path / "in.jsonl", [{"prompt": 5}])
    assert "Built-in" not in dgen(*flags).err
    write(tmp_path / "in.jsonl", [{"prompt": "What is 7 plus 5?"}])
    assert "Built-in demo checkpoint" in dgen(*flags).err
