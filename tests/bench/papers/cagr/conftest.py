"""A tiny index of eight clusters, and questions of three kinds for it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.papers.cagr.run import FILES
from carpool.clock import SystemClock
from carpool.disk.index import OpenIndex, open_index
from carpool.embedding import EmbeddingSettings
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings

MODEL = "hashing:16"
ROWS, NLIST = 400, 8
WORDS = [f"word{number}" for number in range(60)]


def sentences(seed: int, count: int) -> list[str]:
    """Returns sentences of eight words, no two alike."""
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(WORDS, 8))} {number}" for number in range(count)]


@pytest.fixture(scope="session")
def index_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 400 sentences."""
    folder = tmp_path_factory.mktemp("figures")
    corpus = folder / "corpus.jsonl"
    lines = (
        json.dumps({"id": f"p-{row}", "text": text}) for row, text in enumerate(sentences(1, ROWS))
    )
    corpus.write_text("".join(f"{line}\n" for line in lines))
    config = IndexerConfig(
        embedding=EmbeddingSettings(model=MODEL), indexer=IndexerSettings(threads=1)
    )
    request = BuildRequest(corpus=corpus, index_dir=folder / "index", nlist=NLIST)
    build_index(request, config, SystemClock(), SilentProgress())
    return folder / "index"


@pytest.fixture
def index(index_dir: Path) -> Iterator[OpenIndex]:
    """The index, open."""
    opened = open_index(index_dir)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 questions of each kind, as the evaluation data have them."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(FILES.values(), start=2):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(f"{json.dumps({'text': text})}\n" for text in sentences(seed, 150))
    return folder
