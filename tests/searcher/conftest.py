"""What the tests of the search plane share: a small index, segments on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.searcher.codes_rig import make_index
from tests.searcher.helpers import SmallIndex, random_index
from tests.searcher.stored_clusters import Stored


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def own_index(tmp_path: Path) -> SmallIndex:
    """One that a test may damage."""
    return random_index(tmp_path / "own")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("segments"))


@pytest.fixture(scope="session")
def codes_index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    """One with codes of all kinds."""
    return make_index(tmp_path_factory.mktemp("codes"))
