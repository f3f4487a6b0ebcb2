"""The page by its structure: one file, nothing fetched, nothing of the trace taken for markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from traces import TOKENS, trace_text

from dgen.output.report.page import report
from dgen.output.trace_reader import parse_trace


class Page(HTMLParser):
    """Elements with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def page_of(**options) -> tuple[str, Page]:
    text = report(parse_trace(trace_text(**options).encode(), name="x"))
    return text, Page(text)


def test_it_is_one_page_that_fetches_nothing():
    text, page = page_of()
    assert text.startswith("<!doctype html>")
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "img", "audio", "video", "form", "a")
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(
        r"@import|url\(|fetch\(|XMLHttpRequest|import\(|sendBeacon|https?://(?!www\.w3\.org/2000/svg)", text
    )
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy


def test_no_token_is_taken_for_markup():
    text, page = page_of()
    assert page.count("script") == 2
    assert page.count("title") == 1
    assert "<script>alert" not in text
    assert "".join(page.texts["title"]) == "dgen trace: </title><script>alert(2)</script>, seed 7"
    answer = page.texts["pre"][-1]
    assert answer.startswith(" a fox</script><script>alert(1)</script><!--日本")
    assert "\\u202eevil\\x1b[31m" in answer, "nothing of the answer turns the page around"


def test_the_script_sets_text_and_never_markup():
    text, _ = page_of()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def data_of(page: Page) -> dict:
    return json.loads(page.texts["script"][0])


def test_the_data_are_the_trace():
    _, page = page_of()
    data = data_of(page)
    assert data["canvasLen"] == len(TOKENS)
    assert [len(canvas["steps"]) for canvas in data["canvases"]] == [3, 1]
    last = data["canvases"][0]["steps"][2]
    assert last["draft"] == list(range(len(TOKENS)))
    assert last["accepted"] == list(range(16))
    assert data["canvases"][0]["top"][0]["top"] == [[2, -0.25], [3, None]]
    assert data["names"]["4"] == "</script><script>alert(1)</script>"
    assert data["names"]["1"] == {"special": "<eos>"}
    assert data["names"][str(TOKENS.index("<0xF0>"))] == [0xF0]


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_killed_run_has_a_page_too(cut):
    _, page = page_of(cut=cut, logprobs=False)
    assert "no end: killed, or going on" in page.texts["dd"]
    assert page.texts["i"] == ["nothing was emitted"]
    assert len(data_of(page)["canvases"]) == (cut > 1)


def test_what_a_control_needs_has_a_name():
    _, page = page_of()
    by_id = {attributes["id"]: (tag, attributes) for tag, attributes in page.elements if "id" in attributes}
    assert by_id["slider"][1]["aria-label"]
    assert by_id["play"][0] == "button"
    assert next(attributes for tag, attributes in page.elements if tag == "html")["lang"] == "en"
    assert "width=device-width" in next(a for _, a in page.elements if a.get("name") == "viewport")["content"]
    used = set(re.findall(r'find\("(\w+)"\)', page.texts["script"][1]))
    assert used <= set(by_id)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no browser here")
def test_in_a_browser_the_script_shows_the_last_step(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of()[0], encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=1000",
    ]
    shown = subprocess.run(
        [BROWSER, *flags, f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in shown.stderr
    page = Page(shown.stdout)
    tokens = [attributes for tag, attributes in page.elements if "data-at" in attributes]
    assert len(tokens) == len(TOKENS)
    assert page.count("svg") == 3
    assert "".join(page.texts["output"]) == "canvas 2, step 1/1"
    assert page.count("script") == 2
