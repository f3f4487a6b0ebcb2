"""`dgen doctor`: every check has an answer, and one that fails is the exit code."""

from __future__ import annotations

import json
import re

import pytest
from tiny import tiny_model

from dgen.checkpoint.fit import fit
from dgen.checkpoint.random_weights import build_empty
from dgen.cli import check, checkup, checkup_kernels
from dgen.denoiser.need import need_of
from dgen.settings import Settings

CPU = Settings(device="cpu")


def answers(done) -> dict[str, dict]:
    return {check["name"]: check for check in json.loads(done.out)["checks"]}


@pytest.fixture(autouse=True)
def without_interpreter(monkeypatch):
    """As on a machine without a card: the fused denoiser's own test is left out."""
    monkeypatch.setattr("dgen.jit.is_interpreted", lambda: False)
    monkeypatch.setattr("dgen.denoiser.fused.is_interpreted", lambda: False)


def test_a_working_machine_passes(dgen, checkpoint):
    done = dgen("doctor", "-m", checkpoint, "--json")
    found = answers(done)
    assert (done.code, json.loads(done.out)["ok"]) == (0, True)
    assert {"dgen", "torch", "transformers", "device", "kernels", "cache", "model", "terminal"} <= set(found)
    assert found["kernels"]["status"] == found["fused"]["status"] == "skip"
    assert "the device is a CPU" in found["kernels"]["detail"]
    assert "fits as float32" in found["model"]["detail"]


def test_the_table_says_the_same(dgen, checkpoint):
    done = dgen("doctor", "-m", checkpoint)
    assert done.code == 0
    assert all(line[:4] in ("ok  ", "skip", "warn") for line in done.out.splitlines() if line[0] != " ")
    assert done.err == "all is well\n"


def test_a_context_above_the_models_own_is_a_warning(dgen, checkpoint):
    done = dgen("doctor", "-m", checkpoint, "--max-context", 999_999)
    assert done.code == 0
    assert "No slot gets the 999999 asked for" in " ".join(done.out.split())
    assert done.err == "nothing failed; 1 warning\n"


def test_a_model_that_does_not_fit_fails_and_the_dtype_that_would_is_named(dgen, checkpoint, monkeypatch):
    need = fit(str(checkpoint), device="cpu").need
    assert need["float32"] == 2 * need["bfloat16"]
    monkeypatch.setattr("dgen.checkpoint.memory.free_memory", lambda device: need["float32"] - 1)
    done = dgen("doctor", "-m", checkpoint, "--json")
    model = answers(done)["model"]
    assert (done.code, model["status"]) == (1, "fail")
    assert "does not fit as float32" in model["detail"]
    assert "--dtype bfloat16" in model["hint"]
    assert dgen("doctor", "-m", checkpoint, "--dtype", "bfloat16", "--json").code == 0


def test_a_model_that_is_not_there_fails_with_the_loaders_words(dgen, tmp_path):
    done = dgen("doctor", "-m", tmp_path / "nowhere")
    assert done.code == 1
    assert f"FAIL  model            no folder {tmp_path}" in done.out


@pytest.mark.usefixtures("interpreter")
def test_without_the_device_the_rest_is_still_told(dgen, checkpoint):
    found = answers(dgen("doctor", "-m", checkpoint, "--device", "cuda", "--json"))
    names = ("device", "kernels", "fused", "cache", "model", "denoiser", "context")
    assert [found[name]["status"] for name in names] == ["fail", "skip", "skip", "ok", *["skip"] * 3]


def test_kernels_that_compute_something_else_fail(monkeypatch):
    from dgen.sampler import kernels_for

    monkeypatch.setattr("dgen.sampler.kernels_for", lambda name, device: kernels_for("triton", device))
    monkeypatch.setattr("dgen.jit.is_interpreted", lambda: True)
    monkeypatch.setattr(
        "dgen.sampler.self_test.self_test", lambda device: ["draw differs (x)", "ranks differ"]
    )
    found = checkup_kernels.sampler_kernels(CPU, lambda text: None)
    assert (found.status, found.detail) == ("fail", "draw differs (x) and 1 more")


def test_old_and_missing_packages_are_named(monkeypatch):
    found = {"torch": "2.9.1+cu130", "transformers": "5.24.0.dev0"}

    def version(package):
        if package in found:
            return found[package]
        raise checkup.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(checkup.metadata, "version", version)
    monkeypatch.setattr(
        checkup.metadata, "requires", lambda _: ["torch>=2.11", "transformers>=5.17", "triton>=3.6; extra"]
    )
    by_name = {check.name: check for check in checkup.versions()}
    assert by_name["torch"].status == "fail"
    assert "2.9.1+cu130, older than 2.11" in by_name["torch"].detail
    assert by_name["transformers"].status == "ok"
    assert by_name["triton"].status == "warn"
    assert by_name["rich"].status == "fail"


def test_a_failure_nobody_foresaw_is_a_finding(monkeypatch):
    def broken() -> check.Check:
        raise OSError("libcuda.so: wrong version\nmore")

    found = check.answered("device", broken, debug=False)
    assert (found.status, found.detail) == ("fail", "OSError: libcuda.so: wrong version")
    with pytest.raises(OSError, match="libcuda"):
        check.answered("device", broken, debug=True)


def test_the_fused_denoiser_is_tested_where_it_can_run(monkeypatch):
    monkeypatch.setattr("dgen.jit.is_interpreted", lambda: True)
    models = []

    def self_test(model):
        models.append(model)
        return []

    monkeypatch.setattr("dgen.denoiser.self_test.self_test", self_test)
    found = checkup_kernels.fused_denoiser(CPU, lambda text: None)
    assert (found.status, found.detail) == (
        "ok",
        "the fused denoiser agrees with transformers as float32 on cpu",
    )
    assert {layer.self_attn.layer_type for layer in models[0].model.decoder.layers} == {
        "sliding_attention",
        "full_attention",
    }
    monkeypatch.setattr("dgen.denoiser.self_test.self_test", lambda model: ["the first step differs by 3e-2"])
    found = checkup_kernels.fused_denoiser(CPU, lambda text: None)
    assert (found.status, found.detail) == ("fail", "the first step differs by 3e-2")
    assert "--denoiser reference" in found.hint
    monkeypatch.setattr("dgen.denoiser.weights.unsupported", lambda model: "this card is too old")
    found = checkup_kernels.fused_denoiser(CPU, lambda text: None)
    assert (found.status, found.detail) == ("skip", "not tested: this card is too old")
    found = checkup_kernels.fused_denoiser(Settings(device="cpu", denoiser="reference"), lambda text: None)
    assert found.detail == "not tested: the denoiser 'reference' was asked for"


def test_the_sizes_for_a_card_make_a_model():
    """What no test without a card would build; the released model's heads are what it is for."""
    model = build_empty(checkup_kernels._sizes("cuda"))
    sliding, full = (layer.self_attn for layer in model.model.decoder.layers)
    assert (sliding.head_dim, full.head_dim) == (256, 512)
    assert model.config.get_text_config().max_position_embeddings > 3 * 48 + 2 * 64


def test_the_context_that_is_left_is_told_for_one_slot_and_for_eight(dgen, checkpoint):
    found = answers(dgen("doctor", "-m", checkpoint, "--json"))["context"]
    assert found["status"] == "ok"
    assert "hold 1 slot of 512 or 8 slots of 512 positions; the model has 512" in found["detail"]
    need = need_of(tiny_model()[0], fused=False, num_slots=1)
    assert f"A slot takes {need.of_slot(512)[0] / 1e3:.1f} kB and " in found["detail"]


def test_what_is_asked_for_is_judged_by_the_memory_that_is_named(dgen, checkpoint):
    fits = 300
    need = need_of(tiny_model()[0], fused=False, num_slots=1)
    memory = fit(str(checkpoint), device="cpu").need["float32"] + need.bytes(fits) + 10
    argv = ("doctor", "-m", checkpoint, "--json", "--memory", memory / 1e9)
    found = answers(dgen(*argv))["context"]
    assert "1 slot of 300 positions; 8 slots don't fit; the model has 512" in found["detail"]
    assert dgen(*argv, "--max-context", fits).code == 0
    done = dgen(*argv, "--max-context", fits + 1)
    found = answers(done)["context"]
    assert (done.code, found["status"], found["hint"]) == (1, "fail", f"--max-context {fits} fits.")
    assert re.match(
        rf"a context of {fits + 1} positions in 1 slot needs \d.* GB beside the weights, and .* GB are free",
        found["detail"],
    )
    done = dgen(*argv, "--slots", 8)
    assert (done.code, answers(done)["context"]["hint"]) == (1, "Free some memory. Or take fewer --slots.")


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (("--max-context", 8), "fail", "a context of 8 positions holds no prompt and a canvas of 8"),
        (("--max-context", 9), "ok", "9 in 1 slot: "),
        (("--max-context", 600), "warn", "No slot gets the 600 asked for"),
        (("--slots", 3, "--max-context", 100), "ok", "or 3 slots of 512 or 8 slots"),
    ],
)
def test_a_context_is_judged_by_the_model_too(dgen, checkpoint, argv, status, says):
    found = answers(dgen("doctor", "-m", checkpoint, "--json", *argv))["context"]
    assert found["status"] == status
    assert says in found["detail"]


def test_a_denoiser_that_cannot_run_fails_with_its_own_reason(dgen, checkpoint, monkeypatch):
    assert "reference" in answers(dgen("doctor", "-m", checkpoint, "--json"))["denoiser"]["detail"]
    monkeypatch.setenv("DGEN_DENOISER", "fused")
    done = dgen("doctor", "-m", checkpoint, "--json")
    found = answers(done)["denoiser"]
    assert (done.code, found["status"]) == (1, "fail")
    assert "needs a CUDA device" in found["detail"]
    monkeypatch.setattr("dgen.denoiser.fused.unsupported", lambda model, device: "its encoder is not causal")
    found = answers(dgen("doctor", "-m", checkpoint, "--json"))["denoiser"]
    assert found["detail"] == "the fused denoiser can't run this model: its encoder is not causal"


def test_a_sampler_that_cannot_run_fails_and_one_that_is_not_wanted_is_not_tested(dgen, checkpoint):
    done = dgen("doctor", "-m", checkpoint, "--set", "kernel=triton", "--json")
    assert (done.code, answers(done)["kernels"]["status"]) == (1, "fail")
    found = answers(dgen("doctor", "-m", checkpoint, "--set", "kernel=torch", "--json"))["kernels"]
    assert found["detail"] == "not tested: the kernel 'torch' was asked for, so the sampler runs in torch"


@pytest.mark.parametrize(
    "argv",
    [
        ("--device", "abacus"),
        ("--dtype", "float16"),
        ("--revision", "main"),
        ("--denoiser", "quick"),
        ("--slots", "0"),
        ("--max-context", "many"),
        ("--memory", "-1"),
        ("--memory", "nan"),
        ("--no-such-option",),
        ("extra",),
    ],
)
def test_a_mistake_in_the_command_is_no_finding(dgen, argv):
    done = dgen("doctor", *argv)
    assert (done.code, done.out) == (2, "")
    assert [line.split(": ")[0] for line in done.err.splitlines()[-2:]] == ["Error", "Hint"]
