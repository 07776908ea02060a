"""What is in an index that was built, what is refused, what is kept."""

import fcntl
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from carpool.disk.index import index_files, open_index
from carpool.disk.manifest import MANIFEST_NAME, Manifest, read_manifest
from carpool.disk.pages import dense
from carpool.disk.segments import SegmentWriter, read_cluster, segment_name
from carpool.embedding import EmbeddingSettings, HashingEmbedder
from carpool.errors import ConfigError
from indexer import build as module
from indexer import stages
from indexer.settings import IndexerConfig, IndexerSettings
from indexer.stats import index_stats
from tests.indexer.helpers import CONFIG, build, passage, write_corpus


def rows_of(index_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """(rows, dim) vectors by row number, and the cluster of each row."""
    index = open_index(index_dir)
    vectors = np.full((index.manifest.row_count, index.manifest.dimension), np.nan, dtype=np.float32)
    clusters = np.full(index.manifest.row_count, -1)
    for extent in index.extents:
        path = index.segment_paths[extent.segment]
        with path.open("rb") as file:
            pages = read_cluster(
                file.fileno(), extent, layout=index.layout, generation=index.manifest.generation, path=str(path)
            )
        found = dense(pages)
        assert (clusters[found.rows] == -1).all()
        assert (np.diff(found.rows) > 0).all()  # in the order of the corpus
        vectors[found.rows], clusters[found.rows] = found.vectors, extent.cluster
    index.close()
    return vectors, clusters


def same_but_time(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, index_version="", read_latency_us=())


def test_every_passage_is_in_the_cluster_of_its_nearest_centroid_with_its_text(tmp_path: Path) -> None:
    report = build(write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index")
    assert report.manifest == read_manifest(tmp_path / "index")
    assert (report.manifest.row_count, report.manifest.nlist, report.manifest.dimension) == (120, 10, 16)
    assert report.manifest.nprobe_default == 8
    assert report.manifest.embedding_model == HashingEmbedder(16).fingerprint
    vectors, clusters = rows_of(tmp_path / "index")
    passages = [passage(row) for row in range(120)]
    texts = [f"{p['title']}. {p['text']}" if p["title"] else p["text"] for p in passages]
    assert np.array_equal(vectors, HashingEmbedder(16).encode(texts))
    index = open_index(tmp_path / "index")
    scores = vectors @ index.centroids.T
    assert (scores[np.arange(120), clusters] >= scores.max(axis=1) - 1e-6).all()
    documents = index.documents.get(range(120))
    assert [(d.doc_id, d.title, d.text) for d in documents] == [(p["id"], p["title"], p["text"]) for p in passages]
    assert np.allclose(np.linalg.norm(index.centroids, axis=1), 1, atol=1e-5)
    index.close()
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == sorted(
        [*report.manifest.files, MANIFEST_NAME]
    )


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_clusters(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 100)
    first, second, third = (
        build(corpus, tmp_path / str(number), seed=seed, nlist=9).manifest for number, seed in enumerate((1, 1, 2))
    )
    assert same_but_time(first) == same_but_time(second)
    assert first.centroids_fingerprint != third.centroids_fingerprint


def test_the_version_tells_when_the_build_began_and_what_it_holds(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 30)
    one = build(corpus, tmp_path / "1").manifest.index_version
    two = build(corpus, tmp_path / "2", nlist=3).manifest.index_version
    assert one.startswith("2027-01-15T08:00Z-")
    assert one != two


def test_passages_that_are_all_the_same_leave_empty_clusters_that_work(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(row), "text": "same"}) + "\n" for row in range(20)))
    build(corpus, tmp_path / "index", nlist=6)
    assert index_stats(tmp_path / "index").clusters_empty == 5
    assert (rows_of(tmp_path / "index")[1] >= 0).all()


def test_one_passage_is_an_index(tmp_path: Path) -> None:
    manifest = build(write_corpus(tmp_path / "c.jsonl", 1), tmp_path / "index").manifest
    assert (manifest.row_count, manifest.nlist, manifest.nprobe_default) == (1, 1, 1)


def test_bad_lines_are_skipped_counted_and_the_first_of_them_listed(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl.gz"
    lines = [json.dumps(passage(row)) if row % 2 else "bad" for row in range(60)]
    corpus.write_bytes(gzip.compress("\n".join(lines).encode()))
    documents = build(corpus, tmp_path / "index").documents
    assert (documents.row_count, documents.problem_count, len(documents.problems)) == (30, 30, 20)
    assert [problem.line for problem in documents.problems[:3]] == [1, 3, 5]
    with pytest.raises(ConfigError, match=r"(?s)30 bad lines.*line 39: .*and 10 more.*--strict"):
        build(corpus, tmp_path / "other", strict=True)
    assert not (tmp_path / "other" / "manifest.json").exists()


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


def test_a_missing_corpus_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no corpus"):
        build(tmp_path / "c.jsonl", tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_complete_index_stays_unless_force_replaces_it(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 30)
    first = build(corpus, tmp_path / "index").manifest
    other = write_corpus(tmp_path / "d.jsonl", 40)
    with pytest.raises(ConfigError, match="--force"):
        build(other, tmp_path / "index")
    assert read_manifest(tmp_path / "index") == first
    still_open = open_index(tmp_path / "index")
    assert build(other, tmp_path / "index", force=True).manifest.row_count == 40
    assert open_index(tmp_path / "index").manifest.row_count == 40
    # Who has the old one open keeps reading it.
    assert still_open.documents.get([29])[0].doc_id == "doc-29"
    still_open.close()


def test_an_index_that_stays_is_said_before_the_corpus_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 30)
    build(corpus, tmp_path / "index")
    monkeypatch.setattr(module, "file_sha256", lambda *_: pytest.fail("the corpus was read"))
    with pytest.raises(ConfigError, match="--force"):
        build(corpus, tmp_path / "index")
    assert not (tmp_path / "index" / ".build").exists()


def interrupted(tmp_path: Path) -> tuple[Path, Path]:
    """A build that embedded everything and then could not go on: 21 clusters of 20 passages."""
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 20), tmp_path / "index"
    with pytest.raises(ConfigError, match="give --nlist 20 or less"):
        build(corpus, index_dir, nlist=21)
    assert len(list((index_dir / ".build" / "shards").iterdir())) == 2
    return corpus, index_dir


def test_another_nlist_goes_on_with_what_was_embedded(tmp_path: Path) -> None:
    corpus, index_dir = interrupted(tmp_path)
    shards = {path: path.stat().st_mtime_ns for path in (index_dir / ".build" / "shards").iterdir()}
    with pytest.raises(ConfigError, match="nlist is 22"):
        build(corpus, index_dir, nlist=22)
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    resumed = build(corpus, index_dir, nlist=5).manifest
    assert same_but_time(resumed) == same_but_time(build(corpus, tmp_path / "whole", nlist=5).manifest)


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
    assert same_but_time(manifest) == same_but_time(build(corpus, tmp_path / "whole", model).manifest)


@pytest.mark.parametrize("damage", ["cut", "flip", "state", "empty"])
def test_damage_in_the_workspace_is_done_again_and_not_built_upon(tmp_path: Path, damage: str) -> None:
    corpus, index_dir = interrupted(tmp_path)
    shard = sorted((index_dir / ".build" / "shards").iterdir())[1]
    content = shard.read_bytes()
    if damage == "state":
        (index_dir / ".build" / "state.json").write_text("{")
    else:
        shard.write_bytes({"cut": content[:-1], "flip": bytes([content[0] ^ 1]) + content[1:], "empty": b""}[damage])
    resumed = build(corpus, index_dir).manifest
    assert same_but_time(resumed) == same_but_time(build(corpus, tmp_path / "whole").manifest)


SEGMENTS = IndexerConfig(
    embedding=CONFIG.embedding,
    # Clusters of a page each: three to a segment, and about four to a pass.
    indexer=IndexerSettings(
        shard_rows=16, threads=1, profile_reads=0, segment_bytes_max=4096 * 4, memory_bytes=8192 + 4096
    ),
)


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


def test_several_segments_and_passes_hold_what_one_of_each_does(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 120)
    many = build(corpus, tmp_path / "many", SEGMENTS, nlist=10).manifest
    one = build(corpus, tmp_path / "one", nlist=10).manifest
    assert (many.segment_count, one.segment_count) == (4, 1)
    for found, expected in zip(rows_of(tmp_path / "many"), rows_of(tmp_path / "one"), strict=True):
        assert np.array_equal(found, expected)
    assert many.generation != one.generation


def test_centroids_assignment_and_finished_segments_are_never_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    whole = build(corpus, tmp_path / "whole", SEGMENTS, nlist=10).manifest
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, SegmentWriter, "append", 8)  # the second cluster of the third segment
        build(corpus, index_dir, SEGMENTS, nlist=10)
    finished = index_dir / ".build" / "finished"
    assert sorted(path.name for path in finished.glob("*.seg")) == [segment_name(0), segment_name(1)]
    for name in ("train_centroids", "assign_rows"):
        stop_at(monkeypatch, stages, name, 1)
    appended: list[int] = []
    real = SegmentWriter.append

    def append(self: SegmentWriter, cluster: int, *rest: Any) -> Any:
        appended.append(cluster)
        return real(self, cluster, *rest)

    monkeypatch.setattr(SegmentWriter, "append", append)
    assert same_but_time(build(corpus, index_dir, SEGMENTS, nlist=10).manifest) == same_but_time(whole)
    assert appended == [6, 7, 8, 9]


@pytest.mark.parametrize("name", [stages.CENTROIDS_NAME, stages.ASSIGNMENT_NAME])
def test_saved_work_that_was_damaged_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, SegmentWriter, "append", 1)
        build(corpus, index_dir, SEGMENTS)
    content = bytearray((index_dir / ".build" / name).read_bytes())
    content[7] ^= 1
    (index_dir / ".build" / name).write_bytes(content)
    resumed = build(corpus, index_dir, SEGMENTS).manifest
    assert same_but_time(resumed) == same_but_time(build(corpus, tmp_path / "whole", SEGMENTS).manifest)


def test_another_layout_goes_on_from_the_assignment_and_leaves_nothing_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, SegmentWriter, "append", 10)
        build(corpus, index_dir, SEGMENTS, nlist=10)
    for name in ("train_centroids", "assign_rows"):
        stop_at(monkeypatch, stages, name, 1)
    larger = IndexerConfig(
        embedding=CONFIG.embedding,
        indexer=msgspec.structs.replace(SEGMENTS.indexer, segment_bytes_max=1 << 20, vector_dtype="float16"),
    )
    manifest = build(corpus, index_dir, larger, nlist=10).manifest
    assert (manifest.segment_count, manifest.vector_dtype) == (1, "float16")
    assert sorted(path.name for path in index_dir.iterdir()) == sorted([*index_files(1), MANIFEST_NAME])


def test_an_index_with_fewer_segments_replaces_one_with_more(tmp_path: Path) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"
    assert build(corpus, index_dir, SEGMENTS).manifest.segment_count == 4
    (index_dir / "clusters.seg").write_bytes(b"of format v0")
    assert build(corpus, index_dir, CONFIG, force=True).manifest.segment_count == 1
    assert sorted(path.name for path in index_dir.iterdir()) == sorted([*index_files(1), MANIFEST_NAME])


def test_float16_vectors_are_those_of_the_model_rounded_in_pages_of_half_the_size(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 200)
    configs = {
        dtype: IndexerConfig(
            embedding=EmbeddingSettings(model="hashing:384"),
            indexer=IndexerSettings(vector_dtype=dtype, threads=1, profile_reads=0),
        )
        for dtype in ("float16", "float32")
    }
    manifests = {dtype: build(corpus, tmp_path / dtype, config).manifest for dtype, config in configs.items()}
    (halves, clusters), (singles, same_clusters) = (rows_of(tmp_path / dtype) for dtype in configs)
    assert np.array_equal(halves, singles.astype(np.float16).astype(np.float32))
    assert np.array_equal(clusters, same_clusters)
    assert {dtype: manifest.page_bytes for dtype, manifest in manifests.items()} == {"float16": 4096, "float32": 8192}
    used = {dtype: index_stats(tmp_path / dtype).cluster_size_bytes.max for dtype in configs}
    assert used["float16"] * 2 == used["float32"]


def test_builds_of_the_same_bytes_share_their_generation_and_no_others_do(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 60)
    first, again = (build(corpus, tmp_path / str(number)).manifest for number in range(2))
    assert (first.generation, first.documents_generation) == (again.generation, again.documents_generation)
    other = build(corpus, tmp_path / "seed", seed=1).manifest
    assert (other.generation != first.generation, other.documents_generation) == (True, first.documents_generation)
    grown = build(write_corpus(corpus, 61), tmp_path / "grown").manifest
    assert grown.documents_generation != first.documents_generation


def test_memory_that_holds_no_cluster_or_no_sample_is_said_and_more_goes_on(tmp_path: Path) -> None:
    corpus, index_dir = write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index"

    def config(memory_bytes: int) -> IndexerConfig:
        indexer = IndexerSettings(shard_rows=16, threads=1, profile_reads=0, memory_bytes=memory_bytes)
        return IndexerConfig(embedding=CONFIG.embedding, indexer=indexer)

    with pytest.raises(
        ConfigError, match=r"memory_bytes is 4096: 64 rows cannot train 70 clusters; give at least 4480"
    ):
        build(corpus, index_dir, config(4096), nlist=70)
    with pytest.raises(ConfigError, match=r"memory_bytes is 8192, too little to write the largest cluster") as caught:
        build(corpus, index_dir, config(8192), nlist=10)
    least_bytes = int(re.findall(r"at least (\d+)", str(caught.value))[0])
    assert build(corpus, index_dir, config(least_bytes + 200), nlist=10).manifest.nlist == 10


def test_precomputed_vectors_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 50)
    np.save(tmp_path / "v.npy", HashingEmbedder(24).encode([f"w{row}" for row in range(50)]))
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_at(patch, stages, "assign_rows", 1)
        build(corpus, tmp_path / "index", vectors=tmp_path / "v.npy")
    stop_at(monkeypatch, module, "check_stored", 1)
    stop_at(monkeypatch, stages, "train_centroids", 1)
    assert build(corpus, tmp_path / "index", vectors=tmp_path / "v.npy").manifest.dimension == 24
    with pytest.raises(Stop):
        build(corpus, tmp_path / "other", vectors=tmp_path / "v.npy")


def test_two_builds_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    corpus, index_dir = interrupted(tmp_path)
    with (index_dir / ".build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another build is running"):
            build(corpus, index_dir)
    build(corpus, index_dir)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_precomputed_vectors_are_taken_as_they_are_and_rounded_ones_are_normalised_again(
    tmp_path: Path, dtype: type
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 50)
    vectors: np.ndarray = HashingEmbedder(24).encode([f"w{row} w{row + 1}" for row in range(50)]).astype(dtype)
    np.save(tmp_path / "v.npy", vectors)
    manifest = build(corpus, tmp_path / "index", vectors=tmp_path / "v.npy", fingerprint="feed").manifest
    assert (manifest.embedding_model, manifest.dimension) == ("feed", 24)
    stored, expected = rows_of(tmp_path / "index")[0], vectors.astype(np.float32)
    if dtype is np.float32:
        assert np.array_equal(stored, expected)
    else:
        assert (
            np.abs(np.linalg.norm(stored, axis=1) - 1).max() < 1e-6 < np.abs(np.linalg.norm(expected, axis=1) - 1).max()
        )
        assert np.abs(stored - expected).max() < 1e-3
    computed = build(corpus, tmp_path / "other", vectors=tmp_path / "v.npy").manifest
    assert computed.embedding_model == HashingEmbedder(16).fingerprint


def good_vectors() -> np.ndarray:
    return HashingEmbedder(8).encode([str(row) for row in range(10)])


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        (good_vectors()[:9], "belong to another corpus"),
        (good_vectors().astype(np.float64), "expected float16 or float32"),
        (good_vectors()[0], "expected float16 or float32"),
        (good_vectors() * np.where(np.arange(10) == 7, 2, 1)[:, None].astype(np.float32), "row 7 .* has length 2"),
        (np.full((10, 8), np.nan, dtype=np.float32), "row 0"),
        (np.zeros((10, 0), dtype=np.float32), "belong to another corpus"),
        (np.array([{}] * 10, dtype=object), "cannot read the vectors"),
    ],
)
def test_precomputed_vectors_that_do_not_fit_are_refused(tmp_path: Path, vectors: np.ndarray, says: str) -> None:
    np.save(tmp_path / "v.npy", vectors, allow_pickle=vectors.dtype == object)
    with pytest.raises(ConfigError, match=says):
        build(write_corpus(tmp_path / "c.jsonl", 10), tmp_path / "index", vectors=tmp_path / "v.npy")


@pytest.mark.parametrize("content", [None, b"", b"no numpy file"])
def test_a_vectors_file_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "v.npy").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot read the vectors"):
        build(write_corpus(tmp_path / "c.jsonl", 10), tmp_path / "index", vectors=tmp_path / "v.npy")


def test_an_output_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 10)
    with pytest.raises(ConfigError, match="another --out"):
        build(corpus, corpus)


def test_each_cluster_has_a_read_latency_or_none_has(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 50)
    latencies = build(corpus, tmp_path / "index", nlist=5).manifest.read_latency_us
    assert len(latencies) in (0, 5)  # 0: this file system has no O_DIRECT
    assert all(latency_us == 1000 for latency_us in latencies)  # a tick of the clock
    without = IndexerConfig(embedding=CONFIG.embedding, indexer=IndexerSettings(profile_reads=0, shard_rows=16))
    assert build(corpus, tmp_path / "other", without, nlist=5).manifest.read_latency_us == ()
