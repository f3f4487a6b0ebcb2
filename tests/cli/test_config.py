"""`dgen config`: what would hold, and who says so, without loading anything."""

from __future__ import annotations

import inspect
import json

from dgen.cli.config import config
from dgen.cli.generate import generate
from dgen.cli.values import AUTO
from dgen.settings import SETTINGS, Settings


def test_each_setting_has_a_value_and_a_source(dgen, checkpoint, monkeypatch):
    monkeypatch.setenv("DGEN_TOP_K", "7")
    done = dgen("config", "-m", checkpoint, "--config", "careful", "--set", "steps=24", "--seed", 3, "--json")
    found = json.loads(done.out)["settings"]
    assert done.code == 0
    assert list(found) == list(SETTINGS)
    expected = {
        "max_tokens": (32, "checkpoint"),
        "stability": (2, "config careful"),
        "top_k": (7, "DGEN_TOP_K"),
        "steps": (24, "--set"),
        "seed": (3, "--seed"),
        "stop": ([], "default"),
    }
    assert {name: (found[name]["value"], found[name]["source"]) for name in expected} == expected


def test_the_table_shows_the_same(dgen, checkpoint):
    done = dgen("config", "-m", checkpoint, "--stop", "a\nb\x1b", "--no-config", "--greedy")
    rows = {line.split()[0]: line.split(maxsplit=2) for line in done.out.splitlines() if line}
    assert rows["stop"][1:] == [r'"a\nb\u001b"', "--stop"]
    assert rows["t_max"][1:] == ["0.0", "greedy (--greedy)"]
    assert rows["greedy"][1:] == ["true", "--greedy"]
    assert "presets for --config: careful, default, fast, greedy" in done.out


def test_without_the_checkpoint_the_rest_is_still_told(dgen, tmp_path):
    done = dgen("config", "-m", tmp_path / "nowhere", "--t-max", 0.5, "--json")
    assert done.code == 0
    assert "the checkpoint's own settings are left out: no folder" in done.err
    assert json.loads(done.out)["checkpoint_read"] is False


def test_what_generate_would_refuse_is_refused(dgen, checkpoint):
    done = dgen("config", "-m", checkpoint, "--steps", 0)
    assert (done.code, done.out) == (2, "")
    assert "steps must be a whole number >= 1" in done.err
    assert dgen("config", "-m", checkpoint, "--greedy", "--t-max", 0.5).code == 2


def test_it_takes_every_flag_of_generate_that_sets_something():
    flags = [name for name in inspect.signature(generate).parameters if name in SETTINGS]
    assert len(flags) > 15
    assert set(flags) <= set(inspect.signature(config).parameters)


def test_what_is_unset_has_a_word_and_what_is_automatic_says_how_it_is_chosen(dgen, checkpoint):
    done = dgen("config", "-m", checkpoint, "--device", "auto", "--no-config")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.out.splitlines() if line}
    assert rows["slots"] == ["auto", f"default: {AUTO['slots']}"]
    assert rows["device"] == ["auto", f"--device: {AUTO['device']}"]
    assert (rows["logprobs"], rows["stop"]) == (["off", "default"], ["none", "default"])
    assert not {"None", "null", "()"} & {word for row in rows.values() for word in row[0].split()}
    found = json.loads(dgen("config", "-m", checkpoint, "--logprobs", "off", "--json").out)["settings"]
    assert found["slots"]["value"] is found["logprobs"]["value"] is None


def test_each_setting_that_may_be_automatic_says_how_it_is_chosen():
    plain = Settings()
    unset = {name for name in SETTINGS if getattr(plain, name) in (None, "auto")}
    assert set(AUTO) == unset - {"logprobs"}


def test_generate_tells_its_settings_in_the_same_words(dgen, checkpoint):
    argv = ("-v", "--prompt", "a", "--max-tokens", 4, "--steps", 1, "--no-think", "--stop", "x")
    done = dgen("generate", "-m", checkpoint, *argv)
    assert f"  slots = auto (default: {AUTO['slots']})\n" in done.err
    assert '  stop = "x" (--stop)\n' in done.err
    assert "  think = false (--think)\n" in done.err
    assert "None" not in done.err
