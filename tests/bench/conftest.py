"""A tiny index, for the tests of searches and of papers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.embedding import EmbeddingSettings
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from tests.bench.helpers import unit_rows

DIMENSION, ROWS, NLIST = 16, 400, 8


@pytest.fixture(scope="session")
def tiny_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 8 clusters of random vectors, with codes; its model is `hashing:16`."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(f'{{"id": "p-{row}", "text": "passage {row}"}}\n' for row in range(ROWS))
    )
    np.save(folder / "vectors.npy", unit_rows(np.random.default_rng(1), ROWS, DIMENSION))
    config = IndexerConfig(
        embedding=EmbeddingSettings(model=f"hashing:{DIMENSION}"),
        indexer=IndexerSettings(threads=1),
    )
    request = BuildRequest(
        corpus=corpus, index_dir=folder / "index", nlist=NLIST, vectors=folder / "vectors.npy"
    )
    build_index(request, config, SystemClock(), SilentProgress())
    return folder / "index"
