"""A tiny collection, for the tests of `carpool bench search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.search.cgroup import MemoryGroup
from bench.search.contestants.contestant import SearchData
from bench.search.options import SearchOptions
from carpool.errors import ConfigError
from tests.bench.helpers import unit_rows

DIMENSION = 16


@pytest.fixture(scope="session")
def collection(tiny_index: Path) -> Path:
    """The rows of the tiny index, its corpus, and 120 questions."""
    np.save(tiny_index.parent / "queries.npy", unit_rows(np.random.default_rng(2), 120, DIMENSION))
    return tiny_index.parent


@pytest.fixture
def data(collection: Path, tmp_path: Path) -> SearchData:
    """The tiny collection, with 50 questions, and an empty folder for what is built."""
    (tmp_path / "prepared").mkdir()
    return SearchData(
        corpus=collection / "corpus.jsonl",
        vectors=collection / "vectors.npy",
        prepared=tmp_path / "prepared",
        tuning=unit_rows(np.random.default_rng(3), 50, DIMENSION),
        index=collection / "index",
    )


def make_options(folder: Path, collection: Path, **wishes: Any) -> SearchOptions:
    """Returns the options of a run that takes seconds."""
    values: dict[str, Any] = {
        "collection": collection,
        "recall": [0.95, 0.98],
        "contestants": "faiss-memory",
        "memory_held_by": "none",
        "work": folder / "work",
    }
    return SearchOptions(**{**values, **wishes})


@pytest.fixture(scope="session")
def cgroups() -> None:
    """Skips where no cgroup can be made."""
    try:
        MemoryGroup(None).remove()
    except ConfigError:
        pytest.skip("memory cgroups cannot be made here (needs root)")
