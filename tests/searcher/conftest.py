"""What the tests of the search plane share: a small index, segments on disk, engines over them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.searcher.block_reads import SIZES
from tests.searcher.helpers import SmallIndex, random_index
from tests.searcher.stored_clusters import DIMENSION, ROW_COUNTS, Stored, store


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def own_index(tmp_path: Path) -> SmallIndex:
    """One that a test may damage."""
    return random_index(tmp_path / "own")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("segments")
    generator = random.Random(3)
    paths = tuple(folder / f"{number}.seg" for number in range(len(SIZES)))
    for path, size_bytes in zip(paths, SIZES, strict=True):
        path.write_bytes(generator.randbytes(size_bytes))
    return paths


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return store(tmp_path_factory.mktemp("segments"), ROW_COUNTS, DIMENSION)
