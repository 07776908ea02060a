"""What the tests of building share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from carpool.disk.document_rows import read_document_rows
from carpool.disk.index import open_index
from carpool.disk.manifest import Manifest
from carpool.disk.pages import dense
from carpool.disk.segments import read_cluster
from carpool.errors import ConfigError
from indexer.settings import IndexerConfig, IndexerSettings
from tests.indexer.helpers import CONFIG, build, write_corpus


def rows_of(index_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """(rows, dim) vectors by document, and the cluster of each."""
    index = open_index(index_dir)
    places = read_document_rows(index_dir, index.manifest, index.extents)
    vectors = np.full(
        (index.manifest.row_count, index.manifest.dimension), np.nan, dtype=np.float32
    )
    clusters = np.full(index.manifest.row_count, -1)
    for extent in index.extents:
        path = index.segment_paths[extent.segment]
        with path.open("rb") as file:
            pages = read_cluster(
                file.fileno(),
                extent,
                layout=index.layout,
                path=str(path),
                sums=index.row_sums[extent.segment],
            )
        found = dense(pages)
        documents = places[found.rows]
        assert (clusters[documents] == -1).all()
        assert (np.diff(documents.astype(int)) > 0).all()  # in the order of the corpus
        vectors[documents], clusters[documents] = found.vectors, extent.cluster
    index.close()
    return vectors, clusters


def same_but_time(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, index_version="")


def interrupted(tmp_path: Path) -> tuple[Path, Path]:
    """A build that embedded everything and then could not go on: 21 clusters of 20 passages."""
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 20), tmp_path / "index"
    with pytest.raises(ConfigError, match="give --nlist 20 or less"):
        build(corpus, index_dir, nlist=21)
    assert len(list((index_dir / ".build" / "shards").iterdir())) == 2
    return corpus, index_dir


SEGMENTS: dict[str, Any] = {
    "config": IndexerConfig(
        embedding=CONFIG.embedding, indexer=IndexerSettings(threads=1, memory_bytes=8192 + 4096)
    ),
    "segment_bytes_max": 4096 * 4,
}
"""Clusters of a page each: three to a segment, and about four to a pass."""


class Stop(Exception):
    """Ends a build where a test wants it ended."""


def stop_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Lets `owner.name` raise `Stop` at its call number `call`, counted from 1."""
    real, calls = getattr(owner, name), itertools.count(1)

    def stopping(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise Stop
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, stopping)
