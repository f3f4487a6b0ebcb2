"""`dgen doctor`: every check has an answer, and one that fails is the exit code."""

from __future__ import annotations

import json

import pytest

from dgen.cli import checkup


def answers(done) -> dict[str, dict]:
    return {check["name"]: check for check in json.loads(done.out)["checks"]}


def test_a_working_machine_passes(dgen, checkpoint):
    done = dgen("doctor", "-m", checkpoint, "--json")
    found = answers(done)
    assert (done.code, json.loads(done.out)["ok"]) == (0, True)
    assert {"dgen", "torch", "transformers", "device", "kernels", "cache", "model", "terminal"} <= set(found)
    assert found["kernels"]["status"] == "skip"
    assert "the device is a CPU" in found["kernels"]["detail"]
    assert "fits as float32" in found["model"]["detail"]


def test_the_table_says_the_same(dgen, checkpoint):
    done = dgen("doctor", "-m", checkpoint)
    assert done.code == 0
    assert all(line[:4] in ("ok  ", "skip", "warn") for line in done.out.splitlines() if line[0] != " ")
    assert done.err == "all is well\n"


def test_a_model_that_does_not_fit_fails_and_the_dtype_that_would_is_named(dgen, checkpoint, monkeypatch):
    from dgen.checkpoint.fit import fit

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
    statuses = [found[name]["status"] for name in ("device", "kernels", "cache", "model")]
    assert statuses == ["fail", "skip", "ok", "skip"]


def test_kernels_that_compute_something_else_fail(monkeypatch):
    from dgen.sampler import kernels_for

    monkeypatch.setattr("dgen.sampler.kernels_for", lambda name, device: kernels_for("triton", device))
    monkeypatch.setattr("dgen.jit.is_interpreted", lambda: True)
    monkeypatch.setattr(
        "dgen.sampler.self_test.self_test", lambda device: ["draw differs (x)", "ranks differ"]
    )
    found = checkup._kernels("cpu", lambda text: None)
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
    def broken() -> checkup.Check:
        raise OSError("libcuda.so: wrong version\nmore")

    found = checkup._answered("device", broken, False)
    assert (found.status, found.detail) == ("fail", "OSError: libcuda.so: wrong version")
    with pytest.raises(OSError, match="libcuda"):
        checkup._answered("device", broken, True)
