"""Names on the hub, against a small server on this machine that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from breaking import WEIGHTS, logits_of, refusal
from huggingface_hub import constants, errors
from tiny import edit_json

from dgen import checkpoint
from dgen.errors import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny"


class Hub:
    """Serves the files of one folder as the repository `someone/tiny`; remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []
        self.refuses: tuple[int, str] | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.split("?")[0]
        refused = self.refuses
        if not refused and NAME not in path:
            refused = (404, "RepoNotFound")
        elif not refused and path.startswith(f"/api/models/{NAME}/revision/") and path.split("/")[-1] == "v9":
            refused = (404, "RevisionNotFound")
        if refused:
            self.send(handler, refused[0], b"{}", {"X-Error-Code": refused[1], "X-Error-Message": refused[1]})
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            self.send(handler, 200, json.dumps([self.entry(file) for file in self.files()]).encode())
        elif path.startswith(f"/api/models/{NAME}"):
            siblings = [{"rfilename": str(file.relative_to(self.folder))} for file in self.files()]
            info = {
                "id": NAME,
                "sha": COMMIT,
                "siblings": siblings,
                "private": False,
                "tags": [],
                "downloads": 0,
            }
            self.send(handler, 200, json.dumps(info).encode())
        else:
            file = self.folder / path.split(f"/{NAME}/resolve/{COMMIT}/")[1]
            if handler.command == "GET":
                self.fetched.append(file.name)
            data = file.read_bytes()
            self.send(handler, 200, data, {"ETag": f'"{self.digest(data)}"', "X-Repo-Commit": COMMIT})

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def entry(self, file: Path) -> dict[str, Any]:
        data = file.read_bytes()
        name = str(file.relative_to(self.folder))
        return {"type": "file", "path": name, "size": len(data), "oid": self.digest(data)}

    @staticmethod
    def digest(data: bytes) -> str:
        return hashlib.sha1(data).hexdigest()

    @staticmethod
    def send(
        handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        handler.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data)


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(folder)
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.chdir(tmp_path)
    yield server
    server.server.shutdown()
    server.server.server_close()


def test_a_name_is_fetched_once_and_then_works_offline(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    for file in ("pytorch_model.bin", "modeling_own.py", "notes.txt", "original/model.safetensors"):
        (hub.folder / file).parent.mkdir(exist_ok=True)
        (hub.folder / file).write_text("not for us")
    seen: list[tuple[str, int, int]] = []
    loaded = checkpoint.load(NAME, progress=lambda *report: seen.append(report))
    assert (loaded.name, loaded.revision) == (NAME, COMMIT)
    assert torch.equal(logits_of(loaded.model), logits_of(checkpoint.load(str(hub.folder)).model))
    wanted = {"chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json"}
    assert set(hub.fetched) == wanted | {"tokenizer_config.json", WEIGHTS}
    fetched = [done for kind, done, _ in seen if kind == "download"]
    assert fetched == sorted(fetched)
    assert fetched[-1] >= (hub.folder / WEIGHTS).stat().st_size
    assert seen[-1][0] == "load"

    hub.fetched.clear()
    hub.refuses = (500, "")
    again = checkpoint.load(NAME, offline=True)
    assert again.revision == COMMIT
    assert checkpoint.load(NAME, revision=COMMIT, offline=True).path == again.path
    assert hub.fetched == []
    assert capfd.readouterr().err == ""


def test_a_wrong_model_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    edit_json(hub.folder / "config.json", model_type="llama")
    assert f"{NAME} is a llama" in refusal(NAME).message
    assert "config.json" in hub.fetched
    assert WEIGHTS not in hub.fetched


def test_the_hubs_refusals_are_told_apart(hub: Hub) -> None:
    error = refusal("someone/else")
    assert "the hub has no model someone/else" in error.message
    assert "no such folder here" in error.message
    assert f"{NAME} has no revision v9" in refusal(NAME, revision="v9").message
    hub.refuses = (403, "GatedRepo")
    error = refusal(NAME)
    assert "is gated" in error.message
    assert "log in" in error.hint
    assert "no name that the hub could have" in refusal("some--one/tiny").message


def test_offline_and_unreachable_are_told_apart(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "dgen runs offline" in refusal(NAME, offline=True).message
    assert hub.fetched == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "dgen runs offline" in refusal(NAME).message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.server.shutdown()
    hub.server.server_close()
    error = refusal(NAME)
    assert f"the hub ({hub.address}) can't be reached" in error.message
    assert isinstance(error, CheckpointError)


def test_whatever_else_the_client_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(28, "No space left on device"), RuntimeError("first\nsecond"), TimeoutError()]
    failures.append(errors.HfHubHTTPError("odd", response=SimpleNamespace(headers={}, request=None)))
    for failure, words in zip(failures, ("No space left", "first", "TimeoutError", "odd"), strict=True):

        def fail(*_: Any, failure: Exception = failure, **__: Any) -> None:
            raise failure

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        message = refusal(NAME).message
        assert "can't be fetched" in message
        assert words in message
