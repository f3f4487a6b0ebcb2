"""`dgen bench` as a user meets it, on a tiny checkpoint and small sizes."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from tiny import edit_json, tiny_checkpoint

from dgen.bench import suite
from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.settings import SHORT
from dgen.cli.main import run

SMALL = ("--canvas", "8", "--vocab", "512", "--repeats", "2", "--device", "cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("bench") / "tiny")
    edit_json(folder / "generation_config.json", max_denoising_steps=3, max_new_tokens=8)  # short runs
    return str(folder)


@pytest.fixture
def dgen_bench(capfd, monkeypatch, checkpoint):
    """Run `dgen bench` on a tiny checkpoint and return (exit code, stdout, stderr)."""
    monkeypatch.setattr(suite, "copy_bandwidth", partial(copy_bandwidth, copy_bytes=1 << 22))
    monkeypatch.setattr(suite, "product_rate", lambda bench: 1e10)

    def call(*argv, sizes=SMALL, model=None):
        code = run(["bench", *sizes, "--model", model or checkpoint, *argv])
        return (code, *capfd.readouterr())

    return call


def test_json_has_samples_floors_peers_runs_and_environment(dgen_bench):
    code, out, _ = dgen_bench("--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == SHORT
    assert (found["settings"]["canvas"], found["settings"]["vocab"]) == (8, 512)
    assert found["settings"]["model_canvas"] == 8
    assert {"cpu", "threads", "torch", "transformers", "python", "dgen", "date", "commit"} <= set(
        found["environment"]
    )
    assert len(found["bandwidth"]["seconds"]) == 2
    figures = {figure["key"]: figure for figure in found["figures"]}
    assert list(figures) == [
        "row_stats.float32",
        "row_stats.float32.softmax_float32",
        "stash.float32.kept",
        "stash.float32.none",
        "prefill.p8",
        "step.b1.p8",
        "commit.b1.p8",
        *(f"generate.b1.p8{part}" for part in ("", ".prefill", ".step", ".commit")),
    ]
    for key, figure in figures.items():
        for measurement in figure["measurements"]:
            single = measurement["by"] == "transformers" and key in ("prefill.p8", "commit.b1.p8")
            assert len(measurement["seconds"]) == (1 if single else 2)
            assert measurement["p10"] <= measurement["median"] <= measurement["p90"]
    assert figures["row_stats.float32"]["floor_seconds"] == pytest.approx(
        8 * 512 * 4 / found["bandwidth"]["bytes_per_second"]
    )
    assert figures["generate.b1.p8"]["tokens"] == 16
    assert len(found["runs"]) == 4
    assert all(r["steps"] == 16 and r["denoise"] > 0 for r in found["runs"])
    assert found["facts"]["ready_seconds"] > 0
    assert found["compare"] is None


def test_the_table_is_plain_when_piped_and_progress_goes_to_stderr(dgen_bench):
    code, out, err = dgen_bench()
    assert code == 0
    assert "\x1b" not in out + err
    assert re.search(r"row statistics, float32 logits +dgen +\d", out)
    assert re.search(r"step, batch 1, prompt 8 +dgen +\d", out)
    assert re.search(r"generate 16 tokens, 8 steps a canvas, batch 1, prompt 8 +dgen +\d", out)
    assert "copy bandwidth" in out.splitlines()[3]
    assert len(re.findall(r"^ figure ", out, re.MULTILINE)) == 1  # one table
    assert "memory and experts" not in out
    lines = err.splitlines()
    assert "row statistics, float32 logits" in lines
    assert len(lines) == len(set(lines))


def test_quiet_says_nothing_and_verbose_tells_the_environment(dgen_bench):
    assert dgen_bench("-q")[2] == ""
    assert "python: 3." in dgen_bench("-v")[2]


def test_a_cpu_that_will_take_minutes_is_told_before_and_how_to_have_it_short(dgen_bench, monkeypatch):
    said = "logits take a CPU a minute or more; for a short run: --canvas 16 --vocab 32768"
    assert said not in dgen_bench()[2]
    monkeypatch.setattr("dgen.cli.bench._PATIENCE", 8)
    code, out, err = dgen_bench()
    assert code == 0
    assert said not in out
    assert err.count(said) == 1
    assert err.index(said) < err.index("copy bandwidth" if "copy bandwidth" in err else "row statistics")
    assert dgen_bench("-q")[2] == ""


def test_an_older_run_adds_ratios(dgen_bench, tmp_path):
    old = tmp_path / "old.json"
    old.write_text(dgen_bench("--format", "json", "-q")[1])
    code, out, _ = dgen_bench("--compare", old)
    assert code == 0
    assert "x old" in out
    code, out, _ = dgen_bench("--compare", old, "--format", "json")
    compared = json.loads(out)["compare"]
    assert compared["path"] == str(old)
    assert {"row_stats.float32", "stash.float32.kept", "step.b1.p8", "generate.b1.p8"} <= {
        r["key"] for r in compared["ratios"]
    }


def test_an_older_run_of_another_canvas_is_refused_before_anything_is_timed(dgen_bench, tmp_path):
    old = tmp_path / "old.json"
    old.write_text(dgen_bench("--format", "json", "-q")[1])
    code, out, err = dgen_bench("--compare", old, sizes=("--canvas", "16", "--vocab", "512"))
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"Error: '{old}' was measured with --canvas 8, this run has 16"
    assert "stash" not in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--canvas", "0"), "canvas must be a whole number from 1 to 65536, not '0' (--canvas)"),
        (("--canvas", "many"), "canvas must be a whole number from 1 to 65536, not 'many' (--canvas)"),
        (("--vocab", "1"), "vocab must be a whole number from 2 to 2147483647, not '1' (--vocab)"),
        (("--repeats", "-3"), "repeats must be a whole number from 1 to 10000, not '-3' (--repeats)"),
        (("--format", "xml"), "--format must be one of table, json, not 'xml'"),
        (("--compare", "nowhere.json"), "can't read the older run 'nowhere.json': No such file or directory"),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("nothing",), "no such command 'nothing'"),
        (("--vocabulary", "9"), "no such option: --vocabulary"),
        (("--arch", "tiny"), "--arch and --model are both given"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_a_hint(dgen_bench, argv, message):
    code, out, err = dgen_bench(*argv)
    assert (code, out) == (2, "")
    errors = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert errors == [f"Error: {message}"]
    assert err.splitlines()[-1].startswith("Hint: ")


def test_a_checkpoint_that_is_not_there_ends_with_its_own_code(dgen_bench, tmp_path):
    code, out, err = dgen_bench(model=str(tmp_path / "nothing"))
    assert (code, out) == (3, "")
    assert "Error: " in err


def test_settings_of_requests_in_the_environment_do_not_change_what_is_timed(dgen_bench, monkeypatch):
    monkeypatch.setenv("DGEN_STEPS", "1")
    monkeypatch.setenv("DGEN_KERNEL", "torch")
    found = json.loads(dgen_bench("--format", "json", "-q")[1])
    assert {r["steps"] for r in found["runs"]} == {16}


def test_an_architecture_can_be_timed_in_the_short_form_too(capfd, monkeypatch):
    monkeypatch.setattr(suite, "copy_bandwidth", partial(copy_bandwidth, copy_bytes=1 << 22))
    code = run(["bench", *SMALL, "--repeats", "1", "--arch", "tiny", "--format", "json", "-q"])
    found = json.loads(capfd.readouterr().out)
    assert (code, found["settings"]["model"], found["settings"]["model_canvas"]) == (0, "arch tiny", 32)


def test_help_opens_with_examples(capfd):
    assert run(["bench", "--help"]) == 0
    assert "dgen bench --canvas 256" in capfd.readouterr().out
