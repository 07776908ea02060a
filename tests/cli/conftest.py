"""Each test of the command line: an empty folder, no settings around, logs as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in os.environ:
        if name.startswith("CARPOOL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield
