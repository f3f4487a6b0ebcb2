"""`dgen bench generate`: turns, rates and parts, and the command on tiny sizes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import pytest

from dgen.bench import suite
from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.floors import Sizes
from dgen.bench.generate_suite import GenerateSuite
from dgen.bench.report import DGEN, TRANSFORMERS
from dgen.bench.settings import GENERATE
from dgen.cli.main import run

SMALL = (
    *("--arch", "tiny", "--prompt-tokens", "5", "--batch", "1,2", "--repeats", "2", "--device", "cpu"),
    *("--tokens", "40", "--steps", "2"),
)


@pytest.fixture
def bench_generate(capfd, monkeypatch):
    """Run the command on small sizes and return (exit code, stdout, stderr)."""
    monkeypatch.setattr(suite, "copy_bandwidth", partial(copy_bandwidth, copy_bytes=1 << 22))
    monkeypatch.setattr(suite, "product_rate", lambda bench: 1e10)

    def call(*argv):
        code = run(["bench", "generate", *SMALL, *argv])
        return (code, *capfd.readouterr())

    return call


def test_json_has_whole_requests_with_their_parts_runs_and_peers(bench_generate):
    code, out, _ = bench_generate("--logprobs", "3", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == GENERATE
    settings = found["settings"]
    assert (settings["tokens"], settings["steps"], settings["logprobs"]) == (40, 2, 3)
    figures = {figure["key"]: figure for figure in found["figures"]}
    assert set(figures) == {
        f"generate.b{batch}.p5{part}" for batch in (1, 2) for part in ("", ".prefill", ".step", ".commit")
    }
    bodies = [DGEN, "dgen, logprobs 3", TRANSFORMERS]
    for figure in figures.values():
        assert [m["by"] for m in figure["measurements"]] == bodies
        assert all(len(m["seconds"]) == 2 and m["median"] > 0 for m in figure["measurements"])
        assert figure["floor_seconds"] > 0
    whole = figures["generate.b2.p5"]
    assert (whole["tokens"], whole["requests"]) == (80, 2)
    assert figures["generate.b2.p5.step"]["tokens"] == 0
    assert len(found["runs"]) == 2 * 3 * 2
    for record in found["runs"]:
        assert (record["steps"], record["canvases"]) == (4, 2)
        assert record["tokens"] == 40 * record["batch"]


def test_the_table_shows_rates(bench_generate):
    code, out, err = bench_generate("--peer", "none")
    assert code == 0
    assert "\x1b" not in out + err
    head = next(line for line in out.splitlines() if line.lstrip().startswith("figure"))
    assert head.split()[-2:] == ["tokens/s", "each"]
    total, each = re.search(r"batch 2, prompt 5 +dgen .* (\d+) +(\d+)$", out, re.MULTILINE).groups()
    assert int(total) == pytest.approx(2 * int(each), abs=1)
    assert re.search(r"^   commit of a canvas +dgen +\d", out, re.MULTILINE)


def test_an_older_run_of_other_steps_is_refused(bench_generate, tmp_path):
    old = tmp_path / "old.json"
    few = ("--peer", "none", "--batch", "1")
    old.write_text(bench_generate(*few, "--format", "json", "-q")[1])
    code, out, _ = bench_generate(*few, "--compare", str(old))
    assert code == 0
    assert "x old" in out
    code, _, err = bench_generate("--steps", "3", "--compare", str(old))
    assert code == 2
    assert "was measured with --steps 2, this run has 3" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--tokens", "0"), "tokens must be a whole number from 1 to 1048576, not '0' (--tokens)"),
        (("--steps", "x"), "steps must be a whole number from 1 to 10000, not 'x' (--steps)"),
        (("--logprobs", "1025"), "logprobs must be a whole number from 0 to 1024, not '1025' (--logprobs)"),
        (
            ("--tokens", "4096"),
            "a prompt of 5 tokens and 128 canvases of 32 make 4101 positions; arch tiny has 4096",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line_with_a_hint(bench_generate, argv, message):
    code, out, err = bench_generate(*argv)
    assert (code, out) == (2, "")
    assert [line for line in err.splitlines() if line.startswith("Error: ")] == [f"Error: {message}"]
    assert err.splitlines()[-1].startswith("Hint: ")


def test_bodies_take_turns_after_a_warm_up_each(bench, stand):
    told = []
    suite = GenerateSuite(replace(bench, repeats=2, progress=told.append), stand, 8, 1, None, peer=True)
    list(suite.figures((1,), (5,)))
    assert [re.search(r": (\w)\w+ (\S+)$", line).groups() for line in told] == [
        ("d", "warm-up"),
        ("t", "warm-up"),
        ("d", "1/2"),
        ("t", "1/2"),
        ("t", "2/2"),
        ("d", "2/2"),
    ]
    assert [run.by for run in suite.runs] == [DGEN, TRANSFORMERS, TRANSFORMERS, DGEN]


def test_a_failure_of_transformers_drops_it_and_keeps_ours(bench, stand, monkeypatch):
    calls = []

    def refuse(*args, **kwargs):
        calls.append(1)
        raise ValueError("no\nmore")

    monkeypatch.setattr(stand.subject.model, "generate", refuse)
    suite = GenerateSuite(replace(bench, repeats=2), stand, 8, 1, None, peer=True)
    whole, *_ = suite.figures((1,), (5,))
    assert whole.of(TRANSFORMERS).skipped == "generate failed: no"
    assert len(whole.of(DGEN).seconds) == 2
    assert len(calls) == 1


def test_the_floor_of_a_request_is_that_of_its_passes(bench, stand):
    suite = GenerateSuite(bench, stand, 20, 4, None, peer=False)  # three canvases of 8
    whole, prefill, step, commit = suite.figures((2,), (5,))
    assert (
        prefill.floor_bytes
        == 2 * Sizes.of(stand.subject.model).causal_pass(batch=1, tokens=5, context=0).bytes
    )
    assert whole.floor_bytes == prefill.floor_bytes + 3 * 4 * step.floor_bytes + 2 * commit.floor_bytes
    assert sum(work.flops for work in step.floor) > 0


def test_a_single_canvas_has_no_commit(bench, stand):
    suite = GenerateSuite(bench, stand, 8, 1, None, peer=False)
    assert [figure.key.rpartition(".")[2] for figure in suite.figures((1,), (5,))] == [
        "p5",
        "prefill",
        "step",
    ]
