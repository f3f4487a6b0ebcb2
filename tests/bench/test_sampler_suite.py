"""`dgen bench sampler`: every shape that was asked for, floors of the right bytes, peers, and a usable command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from timed import CPU

from dgen.bench import sampler_suite
from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.chain import Chain, chain_figures
from dgen.bench.logits import draw_logits
from dgen.bench.measure import Bench
from dgen.bench.peers import COMPILED, Peers
from dgen.bench.report import DGEN
from dgen.bench.sampler_suite import ALL, NONE, ONE, StashCall, row_stats_figures, stash_figures
from dgen.bench.settings import SAMPLER, SamplerSettings
from dgen.bench.timer import Timer
from dgen.cli.main import run
from dgen.sampler import kernels_for

TORCH = kernels_for("torch", CPU)
SMALL = ("--rows", "4", "--vocab", "512", "--repeats", "2", "--device", "cpu", "--hidden", "16")


@pytest.fixture
def bench_sampler(capfd, monkeypatch):
    """Run the command on small sizes and return (exit code, stdout, stderr)."""
    monkeypatch.setattr(sampler_suite, "copy_bandwidth", partial(copy_bandwidth, copy_bytes=1 << 22))
    monkeypatch.setattr(sampler_suite, "product_rate", lambda bench: 1e12)

    def call(*argv):
        code = run(["bench", "sampler", *SMALL, *argv])
        return (code, *capfd.readouterr())

    return call


def logits(bench, softcap=None):
    return draw_logits(bench, rows=4, vocab=512, dtype=torch.float32, softcap=softcap)


def test_json_has_every_combination_beside_its_floor(bench_sampler):
    code, out, _ = bench_sampler(
        "--dtype", "float32,bfloat16", "--top-k", "0,5", "--rows", "4,2", "--format", "json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == SAMPLER
    keys = [figure["key"] for figure in found["figures"]]
    assert len(keys) == len(set(keys)) == 2 * (2 * 4 + 2 * 4)
    assert {"row_stats.4x512.bfloat16.softcap.softmax", "stash.2x512.float32.k5.one"} <= set(keys)
    for figure in found["figures"]:
        (ours,) = figure["measurements"]
        assert ours["by"] == DGEN
        assert len(ours["seconds"]) == 2
        assert ours["p10"] <= ours["median"] <= ours["p90"]
    floors = {figure["key"]: figure["floor_seconds"] for figure in found["figures"]}
    assert floors["row_stats.4x512.float32"] == pytest.approx(
        4 * 512 * 4 / found["bandwidth"]["bytes_per_second"]
    )
    assert {"cpu", "torch", "dgen", "date"} <= set(found["environment"])


def test_the_table_is_plain_when_piped_and_progress_goes_to_stderr(bench_sampler):
    code, out, err = bench_sampler("--top-k", "3", "--dtype", "float32")
    assert code == 0
    assert "\x1b" not in out + err
    assert re.search(r"stash 4x512, float32 logits, K = 3, none kept +dgen +\d", out)
    assert "row statistics 4x512, float32 logits" in err.splitlines()


def test_the_keys_told_ahead_are_those_of_the_figures(bench_sampler):
    found = json.loads(bench_sampler("--top-k", "0,3", "--format", "json", "-q")[1])
    asked = SamplerSettings(**{name: _tuple(value) for name, value in found["settings"].items()})
    assert asked.figure_keys() == [figure["key"] for figure in found["figures"]]
    assert "chain.4x512" in replace(asked, device="cuda", only="chain").figure_keys()


def _tuple(value):
    return tuple(value) if isinstance(value, list) else value


def test_only_the_figures_that_were_asked_for_are_timed(bench_sampler):
    found = json.loads(bench_sampler("--only", "softcap.softmax", "--format", "json", "-q")[1])
    assert [figure["key"] for figure in found["figures"]] == [
        "row_stats.4x512.float32.softcap.softmax",
        "row_stats.4x512.bfloat16.softcap.softmax",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--rows", "4,0"), "rows must be a whole number from 1 to 65536, not '0' (--rows)"),
        (("--vocab", ""), "vocab must be a whole number from 2 to 1073741824, not '' (--vocab)"),
        (("--top-k", "1025"), "top-k must be a whole number from 0 to 1024, not '1025' (--top-k)"),
        (("--dtype", "float32,int8"), "unknown dtype 'int8' (--dtype)"),
        (("--device", "abacus"), "unknown device 'abacus' (--device)"),
        (("--only", "nothing"), "--only 'nothing' leaves no figure"),
        (("--format", "xml"), "--format must be one of table, json, not 'xml'"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_a_hint(bench_sampler, argv, message):
    code, out, err = bench_sampler(*argv)
    assert (code, out) == (2, "")
    assert [line for line in err.splitlines() if line.startswith("Error: ")] == [f"Error: {message}"]
    assert err.splitlines()[-1].startswith("Hint: ")


def test_a_card_that_is_not_there_is_refused(bench_sampler, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = bench_sampler("--device", "cuda")
    assert code == 2
    assert "there is no CUDA device here" in err


def test_floors_count_the_bytes_that_must_move(bench):
    peers = Peers(bench, TORCH, compiled=False)
    floors = [figure.floor_bytes for figure in row_stats_figures(peers, logits(bench))]
    assert floors == [4 * 512 * 4, 4 * 512 * (4 + 4 + 2)]
    kept = {f.key.rpartition(".")[2]: f.floor_bytes for f in stash_figures(peers, logits(bench), (5,))}
    assert kept == {ALL: 4 * 512 * 4, ONE: 512 * 4, NONE: None}


@pytest.mark.parametrize(("rows", "written"), [(4, 4), (1, 1), (0, 0)])
def test_the_stash_keeps_the_rows_that_it_says(bench, rows, written):
    call = StashCall(logits(bench), top_k=5, rows=rows)
    call(TORCH)
    assert int((call.ranks > 0).sum()) == written


def test_what_cannot_be_compiled_is_skipped_in_its_own_words(bench, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", lambda function, **_: refuse)
    (figure,) = Peers(bench, TORCH, True, "softmax").figure(
        "softmax", "t", lambda k: k.row_stats(torch.zeros(1, 4), torch.ones(1), 1, 0, None),
        need=0, reference_need=0, floor=None,
    )  # fmt: skip
    assert figure.of(DGEN).seconds
    assert figure.of(COMPILED).skipped == "failed: RuntimeError: no compiler here"


def test_what_is_compiled_stands_beside_the_others(bench, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    figures = list(row_stats_figures(Peers(bench, TORCH, True), logits(bench)))
    assert all([m.by for m in figure.measurements] == [DGEN, COMPILED] for figure in figures)
    assert all(figure.of(COMPILED).seconds for figure in figures)


def test_logits_that_memory_cannot_hold_are_skipped_by_name():
    poor = Bench(Timer(CPU), 1, lambda _: 10**3, lambda _: None)
    for figure in row_stats_figures(Peers(poor, TORCH, True), logits(poor)):
        assert all("memory" in m.skipped for m in figure.measurements)


def test_a_chain_counts_its_operations_and_bytes(bench):
    chain = Chain(rows=2, vocab=10, hidden=3)
    assert chain.flops == 2 * (2 * 2 * 10 * 3)
    assert chain.bytes == 2 * (2 * 10 * 3 + 5 * 2 * 10)
    assert list(chain_figures(bench, TORCH, chain)) == []  # there is no card


def test_an_older_run_adds_ratios_and_one_of_another_width_is_refused(bench_sampler, tmp_path):
    old = tmp_path / "old.json"
    old.write_text(bench_sampler("--top-k", "3", "--dtype", "float32", "--format", "json", "-q")[1])
    code, out, _ = bench_sampler("--top-k", "3", "--dtype", "float32", "--compare", str(old))
    assert code == 0
    assert "x old" in out
    code, _, err = bench_sampler("--hidden", "32", "--compare", str(old))
    assert code == 2
    assert "was measured with --hidden 16, this run has 32" in err
