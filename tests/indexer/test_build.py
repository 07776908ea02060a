"""What is in an index that was built, what is refused, what is kept."""

from __future__ import annotations

import fcntl
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.documents import DocumentStore
from carpool.disk.index import index_files, open_index
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from carpool.embedding import EmbeddingSettings
from carpool.embedding.hashing import HashingEmbedder
from carpool.errors import ConfigError
from indexer import build as module
from indexer.settings import IndexerConfig, IndexerSettings
from indexer.stats import index_stats
from searcher.local import LocalSearcher
from tests.indexer.builds import SEGMENTS, interrupted, rows_of, same_but_time
from tests.indexer.helpers import CONFIG, build, passage, write_corpus


def test_every_passage_is_in_the_cluster_of_its_nearest_centroid_with_its_text(
    tmp_path: Path,
) -> None:
    report = build(write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index")
    assert report.manifest == read_manifest(tmp_path / "index")
    manifest = report.manifest
    assert (manifest.row_count, manifest.nlist, manifest.dimension) == (120, 10, 16)
    assert manifest.nprobe_default == 10
    assert report.manifest.embedding_model == HashingEmbedder(16).fingerprint
    vectors, clusters = rows_of(tmp_path / "index")
    passages = [passage(row) for row in range(120)]
    texts = [f"{p['title']}. {p['text']}" if p["title"] else p["text"] for p in passages]
    assert np.array_equal(vectors, HashingEmbedder(16).encode(texts))
    index = open_index(tmp_path / "index")
    scores = vectors @ index.centroids.T
    assert (scores[np.arange(120), clusters] >= scores.max(axis=1) - 1e-6).all()
    documents = [index.documents.document(number) for number in range(120)]
    assert [(d.doc_id, d.title, d.text) for d in documents] == [
        (p["id"], p["title"], p["text"]) for p in passages
    ]
    assert np.allclose(np.linalg.norm(index.centroids, axis=1), 1, atol=1e-5)
    index.close()
    names = {path.name for path in (tmp_path / "index").iterdir()}
    assert names == {*manifest.files, MANIFEST_NAME}


def test_the_same_seed_gives_the_same_bytes_and_ids_and_another_one_other_clusters(
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 100)
    first, second, third = (
        build(corpus, tmp_path / name, seed=seed, nlist=9).manifest
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert same_but_time(first) == same_but_time(second)
    assert first.build_id == second.build_id
    assert first.documents_build_id == second.documents_build_id == third.documents_build_id
    assert first.centroids_fingerprint != third.centroids_fingerprint
    assert first.build_id != third.build_id
    assert first.index_version.startswith("2027-01-15T08:00:00Z-")
    assert first.index_version != third.index_version
    grown = build(write_corpus(corpus, 101), tmp_path / "grown").manifest
    assert grown.documents_build_id != first.documents_build_id


def test_an_index_has_no_empty_clusters_so_copies_of_one_passage_hide_nothing(
    tmp_path: Path,
) -> None:
    texts = ["same"] * 200 + [f"other {row}" for row in range(8)]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts))
    )
    manifest = build(corpus, tmp_path / "index", nlist=100).manifest
    assert index_stats(tmp_path / "index").cluster_rows.min > 0
    assert manifest.nlist <= 9
    vectors, _ = rows_of(tmp_path / "index")
    queries = -vectors[:50] + np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    with LocalSearcher(tmp_path / "index", nprobe=1) as searcher:
        assert all(result.hits for result in searcher.search(queries))


def test_bad_lines_are_skipped_and_counted_and_equal_ones_are_one_line(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl.gz"
    lines = [json.dumps(passage(row)) if row % 2 else "bad" for row in range(60)]
    lines += [json.dumps(passage(row)) for row in (1, 3)] + ['{"id": "b", "text": ""}']
    lines += [f'{{"id": "b", "{chr(97 + field)}": 1}}' for field in range(20)]
    corpus.write_bytes(gzip.compress("\n".join(lines).encode()))
    documents = build(corpus, tmp_path / "index").documents
    assert (documents.row_count, documents.problem_count, len(documents.problems)) == (30, 53, 20)
    listed = [(problem.line, problem.count) for problem in documents.problems]
    assert listed[:4] == [(1, 30), (61, 2), (63, 1), (64, 1)]
    said = r"(?s)53 bad lines.*line 1: not JSON[^\n]* \(30 such lines\)\n.*and 3 more.*--strict"
    with pytest.raises(ConfigError, match=said):
        build(corpus, tmp_path / "other", strict=True)
    assert not (tmp_path / "other" / "manifest.json").exists()


def test_named_fields_are_part_of_what_is_built(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "a", "_id": "b", "text": "x"}\n{"_id": "c", "text": "\\ud800"}\n')
    built = build(corpus, tmp_path / "index")
    other = build(corpus, tmp_path / "other", fields={"id": "_id"})
    assert built.documents.notes["`id` is read from `_id`"] == 1
    ids = [open_index(tmp_path / name).documents.document(0).doc_id for name in ("index", "other")]
    assert ids == ["a", "b"]
    assert built.manifest.documents_build_id != other.manifest.documents_build_id


def test_strict_also_refuses_to_go_on_with_what_an_earlier_life_had_skipped(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 20)
    corpus.write_text(corpus.read_text() + "bad\n")
    with pytest.raises(ConfigError, match="nlist is 21"):
        build(corpus, tmp_path / "index", nlist=21)
    with pytest.raises(ConfigError, match="1 bad line in"):
        build(corpus, tmp_path / "index", strict=True)
    assert build(corpus, tmp_path / "index").documents.problem_count == 1


@pytest.mark.parametrize("content", ["", "\n\n", "bad\n"])
def test_a_corpus_without_a_passage_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(ConfigError, match="no passage"):
        build(tmp_path / "c.jsonl", tmp_path / "index")


def test_a_complete_index_stays_unless_force_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 30)
    first = build(corpus, tmp_path / "index").manifest
    other = write_corpus(tmp_path / "d.jsonl", 40)
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="--force"):
        patch.setattr(module, "file_sha256", lambda *_: pytest.fail("the corpus was read"))
        build(other, tmp_path / "index")
    assert read_manifest(tmp_path / "index") == first
    assert not (tmp_path / "index" / ".build").exists()
    still_open = open_index(tmp_path / "index")
    assert build(other, tmp_path / "index", force=True).manifest.row_count == 40
    assert open_index(tmp_path / "index").manifest.row_count == 40
    # Who has the old one open keeps reading it.
    assert still_open.documents.document(29).doc_id == "doc-29"
    still_open.close()


def test_an_index_with_fewer_segments_replaces_one_with_more(tmp_path: Path) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    assert build(corpus, index_dir, **SEGMENTS).manifest.segment_count == 4
    assert build(corpus, index_dir, CONFIG, force=True).manifest.segment_count == 1
    assert {path.name for path in index_dir.iterdir()} == {*index_files(1, ["int4"]), MANIFEST_NAME}


def test_float16_vectors_are_those_of_the_model_rounded_in_pages_of_half_the_size(
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 200)
    configs = {
        dtype: IndexerConfig(
            embedding=EmbeddingSettings(model="hashing:384"),
            indexer=IndexerSettings(vector_dtype=dtype, threads=1),
        )
        for dtype in ("float16", "float32")
    }
    pages = [
        build(corpus, tmp_path / dtype, config).manifest.page_bytes
        for dtype, config in configs.items()
    ]
    (halves, clusters), (singles, same_clusters) = (rows_of(tmp_path / dtype) for dtype in configs)
    assert np.array_equal(halves, singles.astype(np.float16).astype(np.float32))
    assert np.array_equal(clusters, same_clusters)
    assert pages == [4096, 8192]


def test_memory_that_holds_no_cluster_or_no_sample_is_said_and_more_goes_on(tmp_path: Path) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"

    def config(memory_bytes: int) -> IndexerConfig:
        indexer = IndexerSettings(threads=1, memory_bytes=memory_bytes)
        return IndexerConfig(embedding=CONFIG.embedding, indexer=indexer)

    untrained = "memory_bytes is 4096: 64 rows cannot train 70 clusters; give at least 4480"
    with pytest.raises(ConfigError, match=untrained):
        build(corpus, index_dir, config(4096), nlist=70)
    unwritten = "memory_bytes is 8192, too little to write the largest cluster"
    with pytest.raises(ConfigError, match=unwritten) as caught:
        build(corpus, index_dir, config(8192), nlist=10)
    least_bytes = int(re.findall(r"at least (\d+)", str(caught.value))[0])
    assert build(corpus, index_dir, config(least_bytes + 200), nlist=10).manifest.nlist == 10


def test_a_model_that_gives_no_vector_is_named_with_its_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            return super().encode(texts) * np.nan

    monkeypatch.setattr(module, "load_embedder", lambda *_, **__: Broken(16))
    with pytest.raises(ConfigError, match=r"row 0 \(passage 'doc-0'\) from the model "):
        build(write_corpus(tmp_path / "c.jsonl", 20), tmp_path / "index")


def test_two_builds_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    corpus, index_dir = interrupted(tmp_path)
    with (index_dir / ".build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another build is running"):
            build(corpus, index_dir)
    build(corpus, index_dir)


def test_a_build_keeps_the_first_passage_of_an_id_and_lists_the_others_between_other_bad_lines(
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 60)
    lines = corpus.read_text().splitlines()
    again = [lines[7].replace("Title 7", "Another"), lines[2], lines[7]]
    corpus.write_text(
        "\n".join([*lines[:30], "nonsense", again[0], "", *lines[30:], *again[1:]]) + "\n"
    )
    report = build(corpus, tmp_path / "index", nlist=3)
    assert report.documents.row_count == 60
    assert [(p.line, p.count) for p in report.documents.problems] == [(31, 1), (32, 3)]
    assert report.documents.problems[1].why == "duplicate id 'doc-7'"
    with DocumentStore.open(tmp_path / "index", report.manifest) as store:
        found = store.get(range(60))
    assert [document.doc_id for document in found] == [f"doc-{row}" for row in range(60)]
    assert found[7].title == "Title 7"
    assert not (tmp_path / "index" / ".build").exists()
