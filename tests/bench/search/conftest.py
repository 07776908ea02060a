"""A tiny index and questions for it, for the tests of `carpool bench search`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.data.clusters import open_clusters
from bench.search.cgroup import memory_group
from bench.search.contestants.contestant import SearchData
from bench.search.options import SearchOptions
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from tests.waiting import WAIT_S

DIMENSION = 16
ROWS = 400
NLIST = 8
QUERIES = 50


def unit_rows(rng: np.random.Generator, rows: int, dimension: int = DIMENSION) -> np.ndarray:
    """Returns random rows of length one."""
    vectors = rng.standard_normal((rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def tiny_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of random vectors, with codes."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(f'{{"id": "p-{row}", "text": "passage {row}"}}\n' for row in range(ROWS))
    )
    np.save(folder / "vectors.npy", unit_rows(np.random.default_rng(1), ROWS))
    config = IndexerConfig(
        embedding=EmbeddingSettings(model=f"hashing:{DIMENSION}"),
        indexer=IndexerSettings(threads=1, code_rows_min=0),
    )
    request = BuildRequest(
        corpus=corpus, index_dir=folder / "index", nlist=NLIST, vectors=folder / "vectors.npy"
    )
    build_index(request, config, SystemClock(), SilentProgress())
    return folder / "index"


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 120 questions."""
    path = tmp_path_factory.mktemp("questions") / "questions.npy"
    np.save(path, unit_rows(np.random.default_rng(2), 120))
    return path


@pytest.fixture(scope="session")
def data(tiny_index: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchData:
    """The tiny index, with 50 queries."""
    view = open_clusters(tiny_index)
    queries, earlier = (unit_rows(np.random.default_rng(seed), QUERIES) for seed in (3, 4))
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
        "cell_timeout_s": WAIT_S,
        "work": folder / "work",
    }
    return SearchOptions(**{**values, **wishes})


@pytest.fixture(scope="session")
def cgroups() -> str:
    """`cgroup`; skips where none can be made."""
    try:
        memory_group("cgroup", f"carpool-test-{os.getpid()}", None).remove()
    except ConfigError:
        pytest.skip("memory cgroups cannot be made here (needs root)")
    return "cgroup"
