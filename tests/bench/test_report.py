"""The report as JSON, its comparison with an older one, and its tables."""

import json
from dataclasses import replace

import pytest
from timed import report

from dgen.bench.compare import compare, read_report
from dgen.bench.environment import environment
from dgen.bench.report import DGEN, TRANSFORMERS, Figure, Measurement, ratio
from dgen.bench.settings import SHORT
from dgen.bench.tables import duration, headline, tables
from dgen.errors import UsageError


def read(path, *, canvas=8, vocab=512):
    return read_report(path, schema=SHORT, same={"canvas": canvas, "vocab": vocab})


def written(tmp_path, record) -> str:
    path = tmp_path / "old.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return str(path)


def test_json_holds_raw_samples_and_what_is_derived_from_them():
    record = json.loads(json.dumps(report().record(), allow_nan=False))
    assert record["schema"] == SHORT
    assert record["settings"]["canvas"] == 8
    assert record["bandwidth"] == {
        "bytes": 2_000_000,
        "seconds": [0.0002, 0.0001, 0.0003],
        "bytes_per_second": pytest.approx(1e10),
    }
    figure = record["figures"][0]
    assert figure["floor_seconds"] == pytest.approx(1e-4)
    ours = figure["measurements"][0]
    assert ours["seconds"] == [0.002, 0.001, 0.003]
    assert (ours["median"], ours["p10"], ours["p90"]) == pytest.approx((0.002, 0.0012, 0.0028))
    assert ours["peak_bytes"] == 5_000_000
    skipped = record["figures"][1]["measurements"][1]
    assert skipped["median"] is None
    assert skipped["skipped"] == "generate failed: no"
    assert record["runs"][0]["tokens"] == 200
    step = record["figures"][1]
    assert (step["floor_bytes"], step["floor_flops"]) == (3_000_000, 3e6)
    assert step["floor_of"] == "head, sampler"
    assert (record["figures"][2]["tokens"], record["figures"][2]["requests"]) == (200, 2)


def test_a_ratio_above_one_says_that_dgen_is_faster():
    found = report(ours=(0.002,), theirs=(0.006,)).figures[0]
    assert ratio(found, TRANSFORMERS) == pytest.approx(3)
    assert ratio(Figure("k", "t", (Measurement(DGEN, (1.0,)),)), TRANSFORMERS) is None


def test_an_older_run_gives_the_ratio_of_each_body(tmp_path):
    path = written(tmp_path, report(ours=(0.004,), theirs=(0.004,)).record())
    found = compare(report(ours=(0.002,), theirs=(0.006,)), read(path))
    ratios = {(r.key, r.by): r.ratio for r in found.ratios}
    assert ratios == {
        ("row_stats.float32", DGEN): pytest.approx(0.5),
        ("row_stats.float32", TRANSFORMERS): pytest.approx(1.5),
        ("step.b1.p64", DGEN): pytest.approx(1.0),
        ("generate.b2.p64", DGEN): pytest.approx(1.0),
    }
    assert found.date == "2030-01-01"
    assert found.differences == ()
    json.dumps(found.record(), allow_nan=False)


def test_steps_of_another_model_are_not_compared_and_what_differs_is_named(tmp_path):
    record = report(model="other", kernels="triton").record()
    record["environment"]["cpu"] = "B CPU"
    found = compare(report(), read(written(tmp_path, record)))
    assert {r.key for r in found.ratios} == {"row_stats.float32"}
    assert found.differences == (
        "kernels was triton, is torch",
        "model was other, is builtin",
        "cpu was B CPU, is A CPU",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "dgen.bench.v0"}, "has the schema 'dgen.bench.v0', not 'dgen.bench.v2'"),
        ({"schema": None}, "is no report of a bench"),
        ({"figures": None}, "damaged"),
        ({"figures": [{"key": "x"}]}, "damaged"),
        ({"settings": {}}, "damaged"),
        ({"environment": 3}, "damaged"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, change, message):
    with pytest.raises(UsageError, match=message) as caught:
        read(written(tmp_path, {**report().record(), **change}))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"text"', "\xff", "[" * 100_000])
def test_a_file_of_something_else_is_refused_in_plain_words(tmp_path, text):
    path = tmp_path / "old.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"old.json' is no (JSON|report of a bench)$"):
        read(str(path))


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.json"):
        read(str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize(("name", "shape"), [("canvas", (9, 512)), ("vocab", (8, 513))])
def test_another_shape_is_refused_with_both_numbers(tmp_path, name, shape):
    path = written(tmp_path, report().record())
    with pytest.raises(UsageError, match=rf"--{name} (8|512), this run has (9|513)"):
        read(path, canvas=shape[0], vocab=shape[1])


def test_tables_show_medians_floors_ratios_and_reasons():
    (figures,) = tables(report())
    rows = {(row[0], row[1]): dict(zip(figures.columns, row, strict=True)) for row in figures.rows}
    ours, theirs = rows["row statistics", "dgen"], rows["", "transformers"]
    assert (ours["median"], ours["p10"], ours["p90"]) == ("2.00 ms", "1.20 ms", "2.80 ms")
    assert (ours["floor"], ours["x floor"], ours["x dgen"]) == ("100 us", "20.00", "")
    assert theirs["x dgen"] in ("2.00", "")  # the step's row of the same name is skipped
    assert any("generate failed: no" in row[1] for row in figures.rows)
    assert all(len(row) == len(figures.columns) for row in figures.rows)
    generated = rows["generate", "dgen"]
    assert (generated["tokens/s"], generated["each"]) == ("400", "200")
    assert (ours["tokens/s"], ours["each"]) == ("", "")


def test_a_part_stands_indented_under_its_whole():
    whole = Figure("step", "step", (Measurement(DGEN, (0.01,)),))
    part = Figure("step.head", "step: LM head", (Measurement(DGEN, (0.001,)),), part="LM head")
    (table,) = tables(replace(report(), figures=(whole, part)))
    assert [row[0] for row in table.rows] == ["step", "  LM head"]
    assert table.rows[1][2:5] == ("1.00 ms", "", "")  # a single sample has no spread


def test_what_is_no_time_is_a_table_of_its_own():
    cell = {"batch": 4, "prompt": 64, "beyond_weights_bytes": 2e9, "experts_hit": 7.25, "num_experts": 8}
    _, cells = tables(replace(report(device="cuda:0"), facts={"cells": [cell]}))
    assert cells.rows == (("4", "64", "2.0 GB", "7.2 of 8"),)
    unknown = {**cell, "beyond_weights_bytes": None, "experts_hit": None}
    assert tables(replace(report(device="cuda:0"), facts={"cells": [unknown]}))[1].rows == (
        ("4", "64", "n/a", "n/a"),
    )


def test_the_headline_tells_what_it_took_to_get_ready():
    facts = {"weight_bytes": 50_700_000_000, "ready_seconds": 12.34, "captures": ["steps of 1"]}
    lines = "\n".join(headline(replace(report(), facts=facts)))
    assert "50.7 GB of weights" in lines
    assert "ready 12.3 s after the weights were in memory: denoiser, kernels, graphs, first step" in lines
    assert "matrix products 0.01 TFLOP/s" in lines


def test_a_comparison_adds_a_column(tmp_path):
    path = written(tmp_path, report(ours=(0.004,)).record())
    now = report(ours=(0.001,))
    table = tables(now, compare(now, read(path)))[0]
    assert table.columns[-1] == "x old"
    assert table.rows[0][-1] == "0.25"


def test_peaks_are_a_column_on_a_card_and_one_line_on_a_cpu():
    assert "peak" not in tables(report())[0].columns
    assert "peak memory of the process 6.0 MB" in headline(report())
    on_card = report(device="cuda:0")
    assert tables(on_card)[0].rows[0][-1] == "5.0 MB"
    assert not any("peak" in line for line in headline(on_card))


def test_the_environment_says_what_a_reader_needs():
    import torch

    found = environment(torch.device("cpu"))
    json.dumps(found, allow_nan=False)
    assert found["gpu"] is None
    assert found["threads"] == torch.get_num_threads()
    assert found["torch"] == torch.__version__
    for name in ("date", "cpu", "python", "transformers", "dgen"):
        assert found[name], name
    assert {"driver", "triton", "commit", "load_average"} <= set(found)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234, "1.23 s"), (0.0456, "45.6 ms"), (0.000_123, "123 us"), (2e-9, "0.00 us"), (12.5, "12.5 s")],
)
def test_durations_have_three_digits(seconds, text):
    assert duration(seconds) == text


def test_a_narrow_terminal_goes_without_the_least_of_the_columns():
    (table,) = tables(report())
    assert table.fit(200) == table
    wide = table._width()
    narrow = table.fit(wide - 1)
    assert narrow.columns == tuple(name for name in table.columns if name != "p10")
    assert all(len(row) == len(narrow.columns) for row in narrow.rows)
    least = table.fit(10).columns
    assert least == ("figure", "by", "median", "x floor", "tokens/s")
    row = dict(zip(least, table.fit(10).rows[-1], strict=True))
    assert (row["figure"], row["median"], row["tokens/s"]) == ("generate", "500 ms", "400")
