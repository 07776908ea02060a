"""Questions for the tiny index, for the tests of `carpool bench search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.data.clusters import open_clusters
from bench.search.cgroup import MemoryGroup
from bench.search.contestants.contestant import SearchData
from bench.search.options import SearchOptions
from carpool.disk.centroids import probe
from carpool.errors import ConfigError
from tests.bench.helpers import unit_rows

QUERIES, DIMENSION = 50, 16


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 120 questions."""
    path = tmp_path_factory.mktemp("questions") / "questions.npy"
    np.save(path, unit_rows(np.random.default_rng(2), 120, DIMENSION))
    return path


@pytest.fixture(scope="session")
def data(tiny_index: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchData:
    """The tiny index, with 50 queries."""
    view = open_clusters(tiny_index)
    queries, earlier = (
        unit_rows(np.random.default_rng(seed), QUERIES, DIMENSION) for seed in (3, 4)
    )
    return SearchData(
        index_dir=tiny_index,
        prepared_dir=tmp_path_factory.mktemp("prepared"),
        top_k=5,
        queries=queries,
        probes=probe(view.centroids, queries, 3),
        earlier=earlier,
        earlier_probes=probe(view.centroids, earlier, 3),
    )


def make_options(folder: Path, *index: Path, **wishes: Any) -> SearchOptions:
    """Returns the options of a run that takes seconds."""
    values: dict[str, Any] = {
        "index": [*index],
        "contestants": "faiss-memory",
        "windows": "10",
        "seeds": 1,
        "queries": 40,
        "nprobe": 3,
        "memory": 10_000.0,
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
