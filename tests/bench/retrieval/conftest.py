"""A tiny index, questions for it, and contestants' data, for the tests of `carpool bench
search`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bench.retrieval.contestant import Dataset
from carpool.clock import SystemClock
from carpool.embedding import EmbeddingSettings
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings

DIMENSION = 16
ROWS = 400
NLIST = 8


def unit_rows(rng: np.random.Generator, rows: int, dimension: int = DIMENSION) -> np.ndarray:
    """Returns random rows of length one."""
    vectors = rng.standard_normal((rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def tiny_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of random vectors."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(f'{{"id": "p-{row}", "text": "passage {row}"}}\n' for row in range(ROWS))
    )
    np.save(folder / "vectors.npy", unit_rows(np.random.default_rng(1), ROWS))
    config = IndexerConfig(
        embedding=EmbeddingSettings(model=f"hashing:{DIMENSION}"),
        indexer=IndexerSettings(threads=1),
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


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Queries and probes without an index behind them."""
    rng = np.random.default_rng(3)
    probes = np.stack([rng.permutation(NLIST)[:3] for _ in range(50)]).astype(np.int32)
    return Dataset(
        index_dir=tmp_path,
        prepared_dir=tmp_path,
        dimension=DIMENSION,
        nlist=NLIST,
        row_count=ROWS,
        top_k=5,
        queries=unit_rows(rng, 50),
        probes=probes,
    )


def cgroups_can_be_made() -> bool:
    """Whether this process may make memory cgroups."""
    from bench.retrieval.cgroup import memory_holder
    from carpool.errors import ConfigError

    try:
        memory_holder("cgroup", f"carpool-test-{os.getpid()}", None).remove()
    except ConfigError:
        return False
    return True


@pytest.fixture(scope="session")
def held_by() -> str:
    """`cgroup`; skips where they cannot be made."""
    if not cgroups_can_be_made():
        pytest.skip("memory cgroups cannot be made here (needs root)")
    return "cgroup"
