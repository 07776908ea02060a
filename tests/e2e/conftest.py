"""One small index for end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.support import build_index


@pytest.fixture(scope="session")
def small_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 400 passages over the hashing model."""
    return build_index(tmp_path_factory.mktemp("small-index"))
