"""Small corpora, and builds of them with the hashing model."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import indexer.build
from carpool.disk.extents import SEGMENT_BYTES_MAX
from carpool.embedding import EmbeddingSettings
from indexer.build import BuildReport, BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from tests.clocks import HandClock

CONFIG = IndexerConfig(
    embedding=EmbeddingSettings(model="hashing:16"), indexer=IndexerSettings(threads=1)
)
WORDS = ("apple", "river", "stone", "cloud", "train", "music", "paper", "glass", "horse", "bread")


def passage(row: int) -> dict[str, Any]:
    """The passage of a row of `write_corpus`."""
    text = " ".join(WORDS[(row * step + step) % 10] for step in range(1, 6))
    return {
        "id": f"doc-{row}",
        "title": f"Title {row}" if row % 2 else "",
        "text": text,
        "metadata": {"row": row},
    }


def write_corpus(path: Path, row_count: int) -> Path:
    """Writes a corpus of `row_count` good lines."""
    path.write_text("".join(json.dumps(passage(row)) + "\n" for row in range(row_count)))
    return path


def build(
    corpus: Path,
    index_dir: Path,
    config: IndexerConfig = CONFIG,
    *,
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
    **wishes: Any,
) -> BuildReport:
    """Builds an index without saying anything; without `nlist` it has about 10 rows a cluster.

    16 rows are embedded between two saves.
    """
    if "nlist" not in wishes and corpus.suffix == ".jsonl" and corpus.is_file():
        lines = corpus.read_bytes().count(b"\n")
        wishes["nlist"] = max(1, lines // 12)
    small = {"SHARD_ROWS": 16, "SEGMENT_BYTES_MAX": segment_bytes_max}
    with mock.patch.multiple(indexer.build, **small):
        return build_index(
            BuildRequest(corpus=corpus, index_dir=index_dir, **wishes),
            config,
            HandClock(step_us=1_000),
            SilentProgress(),
        )
