"""Failures that neither the engine nor the prompt's builder foresees: one line's record, or the end of the run."""

from __future__ import annotations

import pytest
import torch
from batching import Crowded, batch, by_id, generator, read_lines, write_lines
from jsonschema import Draft202012Validator

from dgen.output.schema import schema

VALIDATOR = Draft202012Validator(schema())


class CrowdedCPU(Crowded):
    """As torch and Python say it where there is no card."""

    failure = RuntimeError(
        "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"
    )

    def denoise(self, slots, canvas):
        try:
            return super().denoise(slots, canvas)
        except torch.OutOfMemoryError:
            raise self.failure from None

    def prefill(self, slot, ids):
        try:
            super().prefill(slot, ids)
        except torch.OutOfMemoryError:
            raise self.failure from None


@pytest.mark.parametrize("failure", [CrowdedCPU.failure, MemoryError()], ids=["torch", "Python"])
def test_a_cpu_that_runs_out_of_memory_is_met_like_a_card(tmp_path, failure):
    lines = [{"prompt": "tea " * 80}, *[{"prompt": f"a cat {n}"} for n in range(12)]]
    source = write_lines(tmp_path / "in", lines)
    kind = type("Small", (CrowdedCPU,), {"longest": 60, "failure": failure})
    tally, told = batch(source, tmp_path / "out", generator(num_slots=8, kind=kind))
    assert (tally.done, tally.failed, tally.running) == (12, 1, 0)
    assert any(text.startswith("line 1: out of memory") for text in told)
    found, whole = by_id(tmp_path / "out"), tmp_path / "whole"
    failed = found.pop("1")
    assert failed["finish_reason"] == "error"
    assert failed["usage"]["prompt_tokens"] > 60
    batch(source, whole, generator(num_slots=1))
    assert found == {key: record for key, record in by_id(whole).items() if key != "1"}


def test_any_other_failure_of_a_run_ends_it(tmp_path):
    kind = type("Odd", (CrowdedCPU,), {"room": 0, "failure": RuntimeError("odd shapes")})
    with pytest.raises(RuntimeError, match="odd shapes"):
        batch(write_lines(tmp_path / "in", [{"prompt": "tea"}]), tmp_path / "out", generator(kind=kind))


def test_a_prompt_that_cannot_be_built_for_any_reason_is_its_lines_record(tmp_path, monkeypatch):
    made = generator()
    build = made.job

    def job(prompt, **options):
        if prompt == "odd":
            raise KeyError("nobody foresaw this")
        return build(prompt, **options)

    monkeypatch.setattr(made, "job", job)
    source = write_lines(tmp_path / "in", [{"prompt": "tea"}, {"prompt": "odd"}, {"prompt": "a cat"}])
    tally, told = batch(source, tmp_path / "out", made)
    assert (tally.done, tally.failed) == (2, 1)
    assert told == ["line 2: unexpected KeyError: 'nobody foresaw this'"]
    failed = by_id(tmp_path / "out")["2"]
    VALIDATOR.validate(read_lines(tmp_path / "out")[0])
    assert (failed["finish_reason"], failed["error"]) == ("error", told[0].removeprefix("line 2: "))
