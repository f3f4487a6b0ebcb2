"""`dgen bench step`: what its figures are of, and the command on tiny sizes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from timed import tiny_stand

from dgen.bench import step_suite, suite
from dgen.bench.bandwidth import copy_bandwidth
from dgen.bench.experts import routed
from dgen.bench.parts import admitted, part_calls
from dgen.bench.report import DGEN, TRANSFORMERS
from dgen.bench.settings import STEP
from dgen.bench.step_suite import StepSuite
from dgen.bench.subject import Stand, Subject
from dgen.checkpoint.architecture import read_architecture
from dgen.checkpoint.fit import fit_architecture
from dgen.cli.bench_bed import Bed, Demand
from dgen.cli.bench_model import Choice
from dgen.cli.bench_output import open_sink
from dgen.cli.main import run
from dgen.denoiser.need import need_of
from dgen.errors import DgenError, SettingsError

SMALL = ("--arch", "tiny", "--prompt-tokens", "5,70", "--batch", "1,2", "--repeats", "2", "--device", "cpu")


@pytest.fixture
def bench_step(capfd, monkeypatch):
    """Run the command on small sizes and return (exit code, stdout, stderr)."""
    monkeypatch.setattr(suite, "copy_bandwidth", partial(copy_bandwidth, copy_bytes=1 << 22))
    monkeypatch.setattr(suite, "product_rate", lambda bench: 1e10)

    def call(*argv, sizes=SMALL):
        code = run(["bench", "step", *sizes, *argv])
        return (code, *capfd.readouterr())

    return call


def test_json_has_every_cell_with_its_parts_floors_and_peer(bench_step):
    code, out, _ = bench_step("--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == STEP
    settings = found["settings"]
    assert (settings["model"], settings["denoiser"], settings["dtype"]) == (
        "arch tiny",
        "reference",
        "float32",
    )
    assert (settings["batches"], settings["prompts"], settings["num_slots"]) == ([1, 2], [5, 70], 2)
    figures = {figure["key"]: figure for figure in found["figures"]}
    cells = [f"b{batch}.p{prompt}" for prompt in (5, 70) for batch in (1, 2)]
    assert set(figures) == {
        *(f"{kind}.{cell}" for kind in ("step", "commit") for cell in cells),
        *(f"step.{cell}.sampler" for cell in cells),
        *("prefill.p5", "prefill.p70"),
    }
    for key, figure in figures.items():
        assert figure["floor_seconds"] > 0, key
        assert figure["floor_bytes"] > 0, key
        ours = figure["measurements"][0]
        assert (ours["by"], len(ours["seconds"])) == (DGEN, 2)
        assert 0 < ours["p10"] <= ours["median"] <= ours["p90"]
    for cell in cells:
        assert [m["by"] for m in figures[f"step.{cell}"]["measurements"]] == [DGEN, TRANSFORMERS]
        assert len(figures[f"step.{cell}"]["measurements"][1]["seconds"]) == 2
    assert found["product_flops_per_second"] == 1e10
    facts = found["facts"]
    assert facts["ready_seconds"] > 0
    assert facts["weight_bytes"] > 3_000_000
    assert [(cell["batch"], cell["prompt"]) for cell in facts["cells"]] == [(1, 5), (2, 5), (1, 70), (2, 70)]
    assert all(0 < cell["experts_hit"] <= 8 for cell in facts["cells"])
    assert all(cell["beyond_weights_bytes"] is None for cell in facts["cells"])
    assert {"cpu", "torch", "transformers", "date"} <= set(found["environment"])


@pytest.mark.gpu
def test_on_a_card_the_parts_are_replayed_and_make_up_the_step(bench_step):
    sizes = (
        "--arch",
        "tiny",
        "--prompt-tokens",
        "5,70",
        "--batch",
        "1,2",
        "--repeats",
        "3",
        "--device",
        "cuda",
    )
    code, out, _ = bench_step("--format", "json", "--dtype", "bfloat16", sizes=sizes)
    assert code == 0
    found = json.loads(out)
    assert (found["settings"]["denoiser"], found["settings"]["graphs"]) == ("fused", True)
    figures = {figure["key"]: figure["measurements"][0] for figure in found["figures"]}
    for cell in ("b1.p5", "b2.p5", "b1.p70", "b2.p70"):
        parts = ("decoder", "head", "sampler", "condition", "device", "host")
        assert all(f"step.{cell}.{part}" in figures for part in parts)
        assert len(figures[f"step.{cell}.decoder"]["seconds"]) == 3
    assert all(cell["beyond_weights_bytes"] > 0 for cell in found["facts"]["cells"])


def test_the_table_is_plain_when_piped_and_progress_goes_to_stderr(bench_step):
    code, out, err = bench_step("--peer", "none", "--batch", "1")
    assert code == 0
    assert "\x1b" not in out + err
    assert re.search(r"step, batch 1, prompt 70 +dgen +\d", out)
    assert re.search(r"^   sampler +dgen +\d", out, re.MULTILINE)
    assert re.search(r" 1 +70 +n/a +8\.0 of 8$", out, re.MULTILINE)
    assert "transformers   " not in out
    assert "getting ready" in err.splitlines()


def test_an_older_run_adds_ratios_and_one_of_another_model_is_refused(bench_step, tmp_path):
    old = tmp_path / "old.json"
    few = ("--peer", "none", "--batch", "1", "--prompt-tokens", "5")
    old.write_text(bench_step(*few, "--format", "json", "-q")[1])
    code, out, _ = bench_step(*few, "--compare", str(old))
    assert code == 0
    assert "x old" in out
    compared = json.loads(bench_step(*few, "--compare", str(old), "--format", "json", "-q")[1])["compare"]
    assert {r["key"] for r in compared["ratios"]} >= {"step.b1.p5", "step.b1.p5.sampler", "prefill.p5"}
    code, out, err = bench_step("--compare", str(old), sizes=("--model", "builtin"))
    assert (code, out) == (2, "")
    assert f"'{old}' was measured with model arch tiny, this run has builtin" in err
    old.write_text(json.dumps({"schema": "dgen.bench.v2"}))
    assert "has the schema 'dgen.bench.v2'" in bench_step("--compare", str(old))[2]


def test_a_loaded_checkpoint_can_be_timed(bench_step):
    sizes = ("--model", "builtin", "--prompt-tokens", "3", "--repeats", "1", "--peer", "none")
    found = json.loads(bench_step("--format", "json", "-q", sizes=sizes)[1])
    assert (found["settings"]["model"], found["settings"]["model_canvas"]) == ("builtin", 64)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--batch", "1,0"), "batch must be a whole number from 1 to 1024, not '0' (--batch)"),
        (("--batch", "all"), "batch must be a whole number from 1 to 1024, not 'all' (--batch)"),
        (
            ("--prompt-tokens", "0"),
            "prompt-tokens must be a whole number from 1 to 1048576, not '0' (--prompt-tokens)",
        ),
        (("--repeats", "0"), "repeats must be a whole number from 1 to 10000, not '0' (--repeats)"),
        (("--peer", "vllm"), "--peer must be one of transformers, none, not 'vllm'"),
        (("--arch", "27b"), "no architecture or file '27b' (--arch)"),
        (("--model", "builtin"), "--arch and --model are both given"),
        (
            ("--denoiser", "magic"),
            "denoiser must be one of auto, reference, fused, not 'magic' (--denoiser)",
        ),
        (("--dtype", "fp8"), "unknown dtype 'fp8'"),
        (("--format", "xml"), "--format must be one of table, json, not 'xml'"),
        (("--max-context", "64"), "--max-context 64 is too small: 390 positions are needed"),
        (
            ("--prompt-tokens", "4000"),
            "a prompt of 4000 tokens and 10 canvases of 32 make 4320 positions; arch tiny has 4096",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line_with_a_hint(bench_step, argv, message):
    code, out, err = bench_step(*argv)
    assert (code, out) == (2, "")
    assert [line for line in err.splitlines() if line.startswith("Error: ")] == [f"Error: {message}"]
    assert err.splitlines()[-1].startswith("Hint: ")


@pytest.mark.parametrize(
    "argv", [("--prompt-tokens", "4000"), ("--max-context", "64"), ("--denoiser", "fused")], ids=" ".join
)
def test_what_can_be_refused_is_refused_before_any_weight(bench_step, monkeypatch, argv):
    def made(*_, **__):
        raise AssertionError("weights were made")

    monkeypatch.setattr(Subject, "of_architecture", made)
    monkeypatch.setattr("dgen.denoiser.fused.is_interpreted", lambda: False)
    assert bench_step(*argv)[0] == 2


def test_a_context_that_a_card_cannot_hold_is_refused_before_any_weight():
    outline = fit_architecture(read_architecture("tiny"), device="cpu")
    bed = Bed(open_sink(as_json=False, quiet=True, verbose=False), Choice.of("tiny"), Demand((8,)), repeats=1)
    need = need_of(outline.skeleton, fused=True, num_slots=8).bytes(1000) + outline.need["float32"]
    card = replace(outline, device=torch.device("cuda"), free=need)
    bed._refuse_engine(card, 1000)
    with pytest.raises(SettingsError, match="a context of 1000 positions in 8 slots needs"):
        bed._refuse_engine(replace(card, free=need - 1), 1000)
    bed._refuse_engine(
        replace(outline, free=need - 1), 1000
    )  # on a CPU the reference runs, and takes what it needs


def test_steps_are_those_of_the_engine_and_its_slots_are_free_again(stand):
    seconds = stand.steps(batch=2, prompt=5, warm=1, repeats=3)
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert stand.denoiser.inner._lengths == [0, 0]
    assert len(stand.steps(batch=1, prompt=5, warm=0, repeats=1)) == 1


def test_a_failure_of_ours_is_an_error(stand):
    stand.subject.model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(DgenError, match="not a distribution"):
        stand.steps(batch=1, prompt=5, warm=0, repeats=1)


def test_a_failure_of_transformers_is_told_and_ours_is_timed_all_the_same(bench, stand, monkeypatch):
    def refuse(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory\nby far")

    monkeypatch.setattr(stand.subject.model, "generate", refuse)
    figures = {figure.key: figure for figure in StepSuite(bench, stand, peer=True).figures((1,), (5,))}
    for key in ("step.b1.p5", "prefill.p5", "commit.b1.p5"):
        assert figures[key].of(TRANSFORMERS).skipped == "generate failed: CUDA out of memory"
        assert figures[key].of(DGEN).seconds


def test_the_sampler_is_timed_without_a_forward_pass(stand):
    requests = stand.subject.requests(batch=2, prompt=5, tokens=8, steps=9)
    passes = []
    with torch.inference_mode(), admitted(stand, requests) as slots:
        calls = part_calls(stand, requests, slots)
        hook = stand.subject.model.model.decoder.register_forward_pre_hook(lambda *_: passes.append(1))
        results = [calls["sampler"]() for _ in range(2)]
        hook.remove()
    assert not passes
    assert results[0].entropy.shape == (2, 8)
    assert torch.equal(results[0].argmax, results[1].argmax)
    assert set(calls) == {"sampler"}


def test_the_parts_that_a_denoiser_offers_are_timed_beside_their_floors(bench, monkeypatch):
    stand, calls = tiny_stand(), []
    inner = stand.denoiser.inner

    def parts(slots, canvas):
        assert (slots.tolist(), canvas.shape) == ([0, 1], (2, 8))
        assert inner._lengths == [5, 5]
        return {
            name: lambda name=name: calls.append(name) for name in ("decoder", "head", "condition", "extra")
        }

    monkeypatch.setattr(inner, "parts", parts, raising=False)
    monkeypatch.setattr(inner, "experts_hit", lambda: 2.5, raising=False)
    suite = StepSuite(replace(bench, repeats=2), stand, peer=False)
    figures = {figure.key: figure for figure in suite.figures((2,), (5,))}
    step = figures["step.b2.p5"]
    names = ("decoder", "head", "sampler", "condition")
    assert step.floor == tuple(figures[f"step.b2.p5.{name}"].floor[0] for name in names)
    assert figures["step.b2.p5.extra"].floor == ()
    assert [figure.part for figure in figures.values() if figure.part] == [
        "decoder",
        "LM head",
        "sampler",
        "self-conditioning product",
        "extra",
    ]
    assert calls.count("decoder") == 3  # a warm-up and two repeats
    assert suite.cells[0]["experts_hit"] == 2.5


@pytest.mark.parametrize(("keep", "mean"), [("all", (3 + 2) / 2), ("last", (2 + 1) / 2)])
def test_unique_experts_are_counted_over_passes_or_in_the_last(stand, keep, mean):
    routers = [layer.router for layer in stand.subject.model.model.decoder.layers]
    with routed(stand.subject.model, keep=keep) as seen:
        assert seen.mean is None
        for ids in (([[0, 1], [0, 1]], [[3, 3], [3, 3]]), ([[1, 2], [2, 1]], [[2, 2], [2, 2]])):
            for router, chosen in zip(routers, ids, strict=True):
                (hook,) = router._forward_hooks.values()
                hook(None, None, (None, None, torch.tensor(chosen)))
    assert seen.mean == mean
    assert not any(router._forward_hooks for router in routers)


def test_the_host_is_what_the_wall_clock_has_beyond_the_device(bench, stand, monkeypatch):
    ours = (0.5, 0.7, 0.6)
    monkeypatch.setattr(Stand, "steps", lambda self, **_: ours)
    monkeypatch.setattr(step_suite, "part_calls", lambda *_: {"step": lambda: None})
    figures = {figure.key: figure for figure in StepSuite(bench, stand, peer=False).figures((1,), (5,))}
    device = figures["step.b1.p5.device"].of(DGEN).median
    (host,) = figures["step.b1.p5.host"].of(DGEN).seconds
    assert host == pytest.approx(0.6 - device)
    assert 0 < device < 0.6
    assert figures["step.b1.p5"].of(DGEN).seconds == ours


def test_prompts_hold_no_special_token_and_are_the_same_in_every_run(stand):
    first, second = (stand.subject.requests(batch=2, prompt=300, tokens=8, steps=2) for _ in range(2))
    ids = {token for request in first for token in request.prompt_ids}
    assert (min(ids) >= 15, max(ids) < 450, len(ids) > 200) == (True, True, True)
    assert [r.prompt_ids for r in first] == [r.prompt_ids for r in second]
    assert first[0].prompt_ids != first[1].prompt_ids
    assert first[0].seed != first[1].seed
