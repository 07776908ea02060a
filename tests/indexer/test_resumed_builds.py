"""Builds that were interrupted: what goes on, what is refused, what is done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carpool.disk.extents import segment_name
from carpool.disk.index import index_files
from carpool.disk.manifest import MANIFEST_NAME
from carpool.disk.segments import SegmentWriter
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from indexer import clustering
from indexer.settings import IndexerConfig, IndexerSettings
from tests.indexer.builds import SEGMENTS, Stop, interrupted, rows_of, same_but_time, stop_at
from tests.indexer.helpers import CONFIG, build, write_corpus


def test_another_nlist_goes_on_with_what_was_embedded(tmp_path: Path) -> None:
    corpus, index_dir = interrupted(tmp_path)
    shards = {path: path.stat().st_mtime_ns for path in (index_dir / ".build" / "shards").iterdir()}
    with pytest.raises(ConfigError, match="nlist is 22"):
        build(corpus, index_dir, nlist=22)
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    resumed = build(corpus, index_dir, nlist=5).manifest
    whole = build(corpus, tmp_path / "whole", nlist=5).manifest
    assert same_but_time(resumed) == same_but_time(whole)


def test_a_changed_corpus_or_model_is_refused_until_restart_is_given(tmp_path: Path) -> None:
    corpus, index_dir = interrupted(tmp_path)
    model = IndexerConfig(embedding=EmbeddingSettings(model="hashing:32"), indexer=CONFIG.indexer)
    with pytest.raises(ConfigError, match=r"(?s)embedding_model was.*--restart"):
        build(corpus, index_dir, model)
    write_corpus(corpus, 21)
    with pytest.raises(ConfigError, match=r"(?s)corpus: size_bytes was.*--restart"):
        build(corpus, index_dir)
    manifest = build(corpus, index_dir, model, restart=True).manifest
    assert (manifest.row_count, manifest.dimension) == (21, 32)
    whole = build(corpus, tmp_path / "whole", model).manifest
    assert same_but_time(manifest) == same_but_time(whole)


def test_several_segments_and_passes_hold_what_one_of_each_does(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 120)
    many = build(corpus, tmp_path / "many", **SEGMENTS, nlist=10).manifest
    one = build(corpus, tmp_path / "one", nlist=10).manifest
    assert (many.segment_count, one.segment_count) == (4, 1)
    for found, expected in zip(rows_of(tmp_path / "many"), rows_of(tmp_path / "one"), strict=True):
        assert np.array_equal(found, expected)
    assert many.build_id != one.build_id


def test_centroids_assignment_and_finished_segments_are_never_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    whole = build(corpus, tmp_path / "whole", **SEGMENTS, nlist=10).manifest
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, SegmentWriter, "append", 8)  # the second cluster of the third segment
        build(corpus, index_dir, **SEGMENTS, nlist=10)
    finished = index_dir / ".build" / "finished"
    names = sorted(path.name for path in finished.glob("*.seg"))
    assert names == [segment_name(0), segment_name(1)]
    for name in ("train_centroids", "assign_rows"):
        stop_at(monkeypatch, clustering, name, 1)
    appended: list[int] = []
    real = SegmentWriter.append

    def append(self: SegmentWriter, cluster: int, *rest: Any) -> Any:
        appended.append(cluster)
        return real(self, cluster, *rest)

    monkeypatch.setattr(SegmentWriter, "append", append)
    resumed = build(corpus, index_dir, **SEGMENTS, nlist=10).manifest
    assert same_but_time(resumed) == same_but_time(whole)
    assert appended == [6, 7, 8, 9]


@pytest.mark.parametrize("damage", ["cut", "flip", "{"])
@pytest.mark.parametrize(
    "name", ["shard-*", "state.json", clustering.CENTROIDS_NAME, clustering.ROWS_NAME]
)
def test_saved_work_that_was_damaged_is_done_again_and_not_built_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, SegmentWriter, "append", 1)
        build(corpus, index_dir, **SEGMENTS)
    path = next((index_dir / ".build").rglob(name))
    content = path.read_bytes()
    flipped = bytes([content[0] ^ 1]) + content[1:]
    path.write_bytes({"cut": content[:-1], "flip": flipped, "{": b"{"}[damage])
    resumed = build(corpus, index_dir, **SEGMENTS).manifest
    whole = build(corpus, tmp_path / "whole", **SEGMENTS).manifest
    assert same_but_time(resumed) == same_but_time(whole)


def test_another_layout_goes_on_from_the_assignment_and_leaves_nothing_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, SegmentWriter, "append", 10)
        build(corpus, index_dir, **SEGMENTS, nlist=10)
    for name in ("train_centroids", "assign_rows"):
        stop_at(monkeypatch, clustering, name, 1)
    larger = IndexerConfig(
        embedding=CONFIG.embedding,
        indexer=IndexerSettings(threads=1, memory_bytes=12288, vector_dtype="float16"),
    )
    manifest = build(corpus, index_dir, larger, nlist=10).manifest
    assert (manifest.segment_count, manifest.vector_dtype) == (1, "float16")
    assert {path.name for path in index_dir.iterdir()} == {*index_files(1, ["int4"]), MANIFEST_NAME}
