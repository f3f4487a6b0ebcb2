"""The report as JSON, its comparison with an older one, and its tables."""

import json

import pytest
from timed import report

from dgen.bench.compare import compare, read_report
from dgen.bench.environment import environment
from dgen.bench.report import DGEN, SCHEMA, TRANSFORMERS, Figure, Measurement, ratio
from dgen.bench.tables import duration, headline, tables
from dgen.errors import UsageError


def written(tmp_path, record) -> str:
    path = tmp_path / "old.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return str(path)


def test_json_holds_raw_samples_and_what_is_derived_from_them():
    record = json.loads(json.dumps(report().record(), allow_nan=False))
    assert record["schema"] == SCHEMA
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
    assert record["runs"][0]["tokens"] == 12


def test_a_ratio_above_one_says_that_dgen_is_faster():
    found = report(ours=(0.002,), theirs=(0.006,)).figures[0]
    assert ratio(found, TRANSFORMERS) == pytest.approx(3)
    assert ratio(Figure("k", "t", (Measurement(DGEN, (1.0,)),)), TRANSFORMERS) is None


def test_an_older_run_gives_the_ratio_of_each_body(tmp_path):
    path = written(tmp_path, report(ours=(0.004,), theirs=(0.004,)).record())
    found = compare(report(ours=(0.002,), theirs=(0.006,)), read_report(path, canvas=8, vocab=512))
    ratios = {(r.key, r.by): r.ratio for r in found.ratios}
    assert ratios == {
        ("row_stats.float32", DGEN): pytest.approx(0.5),
        ("row_stats.float32", TRANSFORMERS): pytest.approx(1.5),
        ("step", DGEN): pytest.approx(1.0),
    }
    assert found.date == "2030-01-01"
    assert found.differences == ()
    json.dumps(found.record(), allow_nan=False)


def test_steps_of_another_model_are_not_compared_and_what_differs_is_named(tmp_path):
    record = report(model="other", kernels="triton").record()
    record["environment"]["cpu"] = "B CPU"
    found = compare(report(), read_report(written(tmp_path, record), canvas=8, vocab=512))
    assert {r.key for r in found.ratios} == {"row_stats.float32"}
    assert found.differences == (
        "kernels was triton, is torch",
        "model was other, is builtin",
        "cpu was B CPU, is A CPU",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "dgen.bench.v0"}, "has the schema 'dgen.bench.v0', not 'dgen.bench.v1'"),
        ({"figures": None}, "damaged"),
        ({"figures": [{"key": "x"}]}, "damaged"),
        ({"settings": {}}, "damaged"),
        ({"environment": 3}, "damaged"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, change, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_report(written(tmp_path, {**report().record(), **change}), canvas=8, vocab=512)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"text"', "\xff"])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    path = tmp_path / "old.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError):
        read_report(str(path), canvas=8, vocab=512)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.json"):
        read_report(str(tmp_path / "nowhere.json"), canvas=8, vocab=512)


@pytest.mark.parametrize(("name", "shape"), [("canvas", (9, 512)), ("vocab", (8, 513))])
def test_another_shape_is_refused_with_both_numbers(tmp_path, name, shape):
    path = written(tmp_path, report().record())
    with pytest.raises(UsageError, match=rf"--{name} (8|512), this run has (9|513)"):
        read_report(path, canvas=shape[0], vocab=shape[1])


def test_tables_show_medians_floors_ratios_and_reasons():
    figures, runs = tables(report())
    rows = {(row[0], row[1]): dict(zip(figures.columns, row, strict=True)) for row in figures.rows}
    ours, theirs = rows["row statistics", "dgen"], rows["", "transformers"]
    assert (ours["median"], ours["p10"], ours["p90"]) == ("2.00 ms", "1.20 ms", "2.80 ms")
    assert (ours["floor"], ours["x floor"], ours["x dgen"]) == ("100 us", "20.0", "")
    assert theirs["x dgen"] in ("2.00", "")  # the step's row of the same name is skipped
    assert any("generate failed: no" in row[1] for row in figures.rows)
    assert all(len(row) == len(table.columns) for table in (figures, runs) for row in table.rows)
    first = dict(zip(runs.columns, runs.rows[0], strict=True))
    assert first["prompt"] == "Hello? (5 tokens)"
    assert (first["steps"], first["tokens a step"], first["tokens/s"]) == ("6", "2.0", "15")


def test_a_comparison_adds_a_column(tmp_path):
    path = written(tmp_path, report(ours=(0.004,)).record())
    now = report(ours=(0.001,))
    table = tables(now, compare(now, read_report(path, canvas=8, vocab=512)))[0]
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
