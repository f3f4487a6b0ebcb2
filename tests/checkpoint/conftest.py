"""A tiny checkpoint made once, and copies of it that a test may break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("pristine") / "tiny")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "tiny"))
