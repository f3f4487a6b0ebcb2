"""`dgen trace`: a trace in figures, as a film, as a page."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator
from traces import trace_text

from dgen.output.sparkline import sparkline


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(trace_text(), encoding="utf-8")
    return path


def test_show_tells_each_canvas_in_figures_and_lines(dgen, trace):
    done = dgen("trace", "show", trace)
    assert done.code == 0
    assert "2 prompt tokens · 2 canvases · 4 steps · 21 tokens · eos after 1.75 s" in done.out
    assert "canvas 1: 3 steps, converged by confidence, 19 tokens" in done.out
    assert re.search(r"  accepted      [▁-█]{3}  0/21 → 16/21\n", done.out)
    assert "\x1b" not in done.out
    assert "\\x1b[31m" in done.out


def test_show_steps_has_a_row_for_each_and_one_canvas_can_be_chosen(dgen, trace):
    whole = dgen("trace", "show", trace, "--steps").out
    assert len(re.findall(r"^ +\d+ +0\.\d{3} +\d\.\d{4} +\d+ +\d+ +\d\.\d{3}$", whole, re.MULTILINE)) == 4
    second = dgen("trace", "show", trace, "--canvas", 2).out
    assert "canvas 2" in second
    assert "canvas 1:" not in second
    for none in (3, 0, "x", "²"):
        done = dgen("trace", "show", trace, "--canvas", none)
        assert done.code == 2
        assert done.err == f"Error: there is no canvas '{none}' in '{trace}'\nHint: It has canvases 1 to 2.\n"


def test_play_writes_the_text_to_stdout_and_the_canvas_to_stderr(dgen, trace):
    done = dgen("trace", "play", trace, "--speed", 1000)
    assert done.code == 0
    assert done.out.startswith(" a fox</script>")
    assert done.out.endswith(" fox\n")
    assert "[canvas 1, step 1/4" in done.err
    assert "\x1b" not in done.err
    assert dgen("trace", "play", trace, "--speed", 0).code == 2
    assert dgen("trace", "play", trace, "--speed", "fast").code == 2
    assert dgen("trace", "play", trace, "--slow", "x").code == 2
    done = dgen("trace", "play", trace, "--slow", 0, "--speed", 1000)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: --speed and --slow are both given\n")


def test_html_writes_a_page_and_says_how_large(dgen, trace, tmp_path):
    page = tmp_path / "t.html"
    done = dgen("trace", "html", trace, "--output", page)
    assert (done.code, done.out) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(page))}: \d+ kB\n", done.err)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert dgen("trace", "html", trace, "-o", "-").out.startswith("<!doctype html>")


def test_html_spares_the_trace_and_says_what_cannot_be_written(dgen, trace, tmp_path):
    before = trace.read_text(encoding="utf-8")
    done = dgen("trace", "html", trace, "-o", trace)
    assert done.code == 2
    assert "exists and is no page" in done.err
    assert trace.read_text(encoding="utf-8") == before
    done = dgen("trace", "html", trace, "-o", tmp_path / "none" / "t.html")
    assert done.code == 2
    assert "can't write" in done.err


@pytest.mark.parametrize("command", ["show", "play", "html"])
def test_what_is_no_trace_is_one_line_and_a_hint(dgen, tmp_path, command):
    other = tmp_path / "other.jsonl"
    other.write_text('{"type":"completion"}\n')
    argv = ["-o", str(tmp_path / "x.html")] if command == "html" else []
    done = dgen("trace", command, other, *argv)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[1] == "Hint: dgen generate --trace FILE writes a trace."
    assert not (tmp_path / "x.html").exists()


def test_the_schema_of_a_trace_can_be_had(dgen, trace):
    validator = Draft202012Validator(json.loads(dgen("schema", "--trace").out))
    for line in trace.read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(line))


def test_a_sparkline_is_a_block_a_value_or_the_mean_of_neighbours():
    assert sparkline([0, 1, 2, 4], 10) == "▁▃▅█"
    assert sparkline([0, 0, 4, 4], 2) == "▁█"
    assert sparkline([0, 0], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([-5, 5], 10) == "▁█"
    assert len(sparkline(list(range(100)), 7)) == 7


@pytest.mark.parametrize("command", ["show", "play --speed 1000", "html -o -"])
def test_a_trace_is_read_from_stdin_and_from_gzip(shell, trace, command):
    plain = shell(f"$DGEN trace {command} {trace}")
    assert (plain.returncode, "Warning" in plain.stderr) == (0, False)
    for line in (f"$DGEN trace {command} - <{trace}", f"gzip -k {trace} && $DGEN trace {command} {trace}.gz"):
        done = shell(line)
        assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)


def test_stdin_that_holds_no_trace_is_refused(shell):
    assert "'stdin' is no trace: it is empty" in shell("$DGEN trace show - </dev/null").stderr
    done = shell("$DGEN trace show - <&-")
    assert (done.returncode, "stdin is closed" in done.stderr) == (2, True)


@pytest.mark.parametrize(("cut", "says"), [(4, "has no end"), (3.5, "breaks off within line 4")])
@pytest.mark.parametrize("command", ["show", "play", "html"])
def test_a_run_that_goes_on_is_shown_as_far_as_it_is_with_one_warning(dgen, tmp_path, command, cut, says):
    path = tmp_path / "going.jsonl"
    lines = trace_text().splitlines(keepends=True)
    path.write_text("".join(lines[: int(cut)]) + (lines[3][:40] if cut != int(cut) else ""), encoding="utf-8")
    argv = {"show": (), "play": ("--speed", 1000), "html": ("-o", "-")}[command]
    done = dgen("trace", command, path, *argv)
    assert done.code == 0
    assert done.err.count("Warning") == done.err.count(f"Warning: '{path}' {says}") == 1
    if command == "show":
        assert "2 prompt tokens · 1 canvas · " in done.out
        assert done.out.splitlines()[1].endswith(" · 0 tokens · no end")
        assert dgen("trace", "show", path, "--canvas", 2).code == 2


def test_a_page_spares_what_is_none(dgen, trace, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("my,table\n")
    done = dgen("trace", "html", trace, "-o", page)
    assert done.code == 2
    assert "exists and is no page" in done.err
    assert page.read_text() == "my,table\n"
    page.write_text("")
    assert [dgen("trace", "html", trace, "-o", page).code for _ in range(2)] == [0, 0]
