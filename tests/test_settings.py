"""Settings: each value's source, layers in order, and one clear line for whatever is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from dgen.errors import SettingsError
from dgen.layers import assignments_layer, environment_layer, preset, preset_names
from dgen.settings import FLAG, SETTINGS, Layer, Settings, resolve


def test_every_setting_has_a_default_a_parser_and_a_help_line():
    assert [field.name for field in dataclasses.fields(Settings)] == list(SETTINGS)
    assert all(setting.help for setting in SETTINGS.values())
    assert resolve([]).settings == Settings()


def test_later_layers_win_and_each_value_knows_its_source():
    resolved = resolve(
        [
            Layer("checkpoint", {"steps": 12, "t_max": 0.9, "max_tokens": 100}),
            Layer("config fast", {"steps": 24, "t_max": 0.7}),
            environment_layer({"DGEN_STEPS": "30", "PATH": "/bin", "DGEN_CONFIG": "fast"}),
            Layer(FLAG, {"entropy_bound": 0.2}),
        ]
    )
    wanted = {
        "steps": (30, "DGEN_STEPS"),
        "t_max": (0.7, "config fast"),
        "max_tokens": (100, "checkpoint"),
        "entropy_bound": (0.2, "--entropy-bound"),
        "t_min": (0.4, "default"),
    }
    for name, (value, source) in wanted.items():
        assert (getattr(resolved.settings, name), resolved.sources[name]) == (value, source)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("steps", 0, "steps must be a whole number >= 1, not 0"),
        ("steps", "many", "steps must be a whole number, not 'many'"),
        ("steps", 1.5, "steps must be a whole number, not 1.5"),
        ("steps", True, "steps must be a whole number, not true"),
        ("max_tokens", -3, "max_tokens must be a whole number >= 1, not -3"),
        ("t_min", float("nan"), "t_min must be a number >= 0, not nan"),
        ("t_max", "inf", "t_max must be a number >= 0 and <= 1000000000, not 'inf'"),
        ("top_p", 0, "top_p must be a number > 0 and <= 1, not 0"),
        ("top_p", 1.01, "top_p must be a number > 0 and <= 1, not 1.01"),
        ("top_k", "9" * 30, "top_k must be a whole number >= 0 and <= 2147483647"),
        ("t_max", 1e39, "t_max must be a number >= 0 and <= 1000000000, not 1e+39"),
        ("seed", -1, "seed must be a whole number >= 0"),
        ("seed", 2**63, "seed must be a whole number >= 0"),
        ("stop", ["a", ""], "stop must be one or more non-empty texts"),
        ("logprobs", 1025, "logprobs must be a whole number >= 0 and <= 1024"),
        ("logprob_ids", "5,x", "logprob_ids must be token ids"),
        ("logprobs_of", "cooked", "logprobs_of must be one of tempered, raw"),
        ("greedy", "perhaps", "greedy must be true or false"),
        ("model", "", "model must be a non-empty text"),
        ("kernel", "cuda", "kernel must be one of auto, triton, torch"),
    ],
)
def test_a_bad_value_is_named_with_its_source(name, value, says):
    with pytest.raises(SettingsError) as caught:
        resolve([Layer("config my.toml", {name: value})])
    assert caught.value.message.startswith(says)
    assert caught.value.message.endswith("(config my.toml)")
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_text_values_are_read_as_their_type():
    values = {
        "steps": "7",
        "entropy_bound": "1",
        "greedy": "yes",
        "logprob_ids": "5, 9,5",
        "stop": "END",
        "seed": "none",
    }
    settings = resolve([Layer("environment", values)]).settings
    assert settings.steps == 7
    assert settings.entropy_bound == 1.0
    assert isinstance(settings.entropy_bound, float)
    assert settings.greedy is True
    assert settings.logprob_ids == (5, 9)
    assert settings.stop == ("END",)
    assert settings.seed is None


def test_unknown_keys_are_errors_everywhere_and_the_nearest_name_is_offered():
    with pytest.raises(SettingsError, match="unknown setting 'step'") as caught:
        resolve([Layer("config x.toml", {"step": 3})])
    assert caught.value.hint == "Did you mean 'steps'?"
    with pytest.raises(SettingsError, match="DGEN_STEPZ"):
        environment_layer({"DGEN_STEPZ": "3"})
    with pytest.raises(SettingsError, match="key=value"):
        assignments_layer(["steps"])


def test_a_constant_temperature_and_zero_can_be_said():
    settings = resolve([Layer(FLAG, {"t_min": 0, "t_max": 0})]).settings
    assert (settings.t_min, settings.t_max) == (0.0, 0.0)
    assert resolve([Layer(FLAG, {"t_min": 0.7, "t_max": 0.7})]).settings.t_min == 0.7


def test_a_rising_temperature_is_refused_with_both_sources():
    with pytest.raises(SettingsError) as caught:
        resolve([Layer("checkpoint", {"t_min": 0.4, "t_max": 0.8}), Layer(FLAG, {"t_max": 0.3})])
    assert caught.value.message == "t_min 0.4 (checkpoint) is above t_max 0.3 (--t-max)"


def test_greedy_is_temperature_zero_and_contradicts_a_temperature_given_with_or_after_it():
    resolved = resolve([Layer("checkpoint", {"t_min": 0.4, "t_max": 0.8}), Layer(FLAG, {"greedy": True})])
    assert (resolved.settings.t_min, resolved.settings.t_max) == (0.0, 0.0)
    assert resolved.sources["t_max"] == "greedy (--greedy)"
    for layers in (
        [Layer(FLAG, {"greedy": True, "t_max": 0.5})],
        [preset("greedy"), Layer(FLAG, {"t_max": 0.5})],
    ):
        with pytest.raises(SettingsError, match=r"greedy \(.*\) is temperature 0, but t_max is 0\.5"):
            resolve(layers)


def test_ids_asked_for_turn_log_probabilities_on():
    resolved = resolve([Layer(FLAG, {"logprob_ids": "5"})])
    assert resolved.settings.logprobs == 0
    assert resolved.sources["logprobs"] == "logprob_ids (--logprob-ids)"


def test_shipped_presets_resolve():
    assert preset_names() == ["careful", "default", "fast", "greedy"]
    for name in preset_names():
        resolve([preset(name)])
    assert resolve([preset("default")]).settings == Settings()


def test_a_preset_may_be_a_file_and_what_is_wrong_with_it_is_said(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("steps = 3\nstop = ['a', 'b']\n")
    settings = resolve([preset(str(file))]).settings
    assert (settings.steps, settings.stop) == (3, ("a", "b"))
    file.write_text("steps = ")
    with pytest.raises(SettingsError, match="can't read settings"):
        preset(str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match=r"mine.toml': it is not UTF-8$"):
        preset(str(file))
    with pytest.raises(SettingsError, match=r"': Is a directory$"):
        preset(f"{tmp_path}/")
    with pytest.raises(SettingsError, match="no preset or file 'nope'") as caught:
        preset("nope")
    assert "careful" in caught.value.hint


def test_request_settings_are_the_ones_that_shape_tokens_and_are_json_ready():
    import json

    names = resolve([Layer(FLAG, {"stop": ["x"], "logprob_ids": "3"})]).request_settings()
    assert json.loads(json.dumps(names)) == names
    assert "device" not in names
    assert names["stop"] == ["x"]
