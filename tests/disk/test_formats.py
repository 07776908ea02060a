"""What is written comes back; what was damaged does not."""

import mmap
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, probe, write_centroids
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, Document, DocumentStore, DocumentWriter
from carpool.disk.files import file_crc32, read_exactly
from carpool.disk.index import INDEX_FILES, OpenIndex, open_index
from carpool.disk.manifest import MANIFEST_NAME, FileEntry, Manifest, encode_manifest, read_manifest, write_manifest
from carpool.disk.segment import (
    EXTENTS_NAME,
    PAGE_BYTES,
    SEGMENT_NAME,
    ClusterExtent,
    decode_cluster,
    encode_cluster,
    extent_crc32,
    extent_size_bytes,
    write_extents,
)
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError, CorruptionError

DIMENSION = 5
ROWS_A_CLUSTER = (3, 0, 301)
DOCUMENTS = tuple(
    Document(f"doc-{row}", "" if row % 3 else f"Title {row}", "text é " * (row % 7 + 1)) for row in range(304)
)


def write_index(folder: Path, **changes: object) -> Manifest:
    """Writes a whole index of three clusters, one of them empty."""
    numbers = np.random.default_rng(7)
    centroids = numbers.normal(size=(3, DIMENSION)).astype(np.float32)
    write_centroids(folder, centroids)
    extents, first_row, content = [], 0, b""
    for cluster, count in enumerate(ROWS_A_CLUSTER):
        extent = encode_cluster(
            numbers.normal(size=(count, DIMENSION)).astype(np.float32), np.arange(first_row, first_row + count)
        )
        crc32 = extent_crc32(cluster, count, extent)
        extents.append(
            ClusterExtent(
                cluster=cluster, offset_bytes=len(content), size_bytes=len(extent), row_count=count, crc32=crc32
            )
        )
        content += extent
        first_row += count
    (folder / SEGMENT_NAME).write_bytes(content)
    write_extents(folder, extents)
    writer = DocumentWriter(folder)
    assert [writer.append(document) for document in DOCUMENTS] == list(range(304))
    writer.close()
    files = {n: FileEntry(size_bytes=(folder / n).stat().st_size, crc32=file_crc32(folder / n)) for n in INDEX_FILES}
    manifest = Manifest(
        format="v0",
        index_version="2026-11-21T10:00Z-7f3a",
        dimension=DIMENSION,
        metric="inner_product",
        nlist=3,
        codec="Flat",
        vector_dtype="float32",
        embedding_model="abc",
        embedding_model_name="test",
        centroids_fingerprint=centroids_fingerprint(centroids),
        row_count=304,
        nprobe_default=2,
        read_latency_us=(5, 6, 7),
        files=files,
    )
    manifest = msgspec.structs.replace(manifest, **changes)
    write_manifest(folder, manifest)
    return manifest


def read_everything(folder: Path) -> int:
    """Reads an index as services do and returns the rows that were decoded."""
    index = open_index(folder)
    try:
        with index.segment_path.open("rb") as file:
            rows = 0
            for extent in index.extents:
                content = read_exactly(file.fileno(), extent.size_bytes, extent.offset_bytes, str(index.segment_path))
                rows += len(decode_cluster(content, extent, index.manifest.dimension).rows)
        assert index.documents.get(range(304)) == list(DOCUMENTS)
        return rows
    finally:
        index.close()


def test_an_index_comes_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    index: OpenIndex = open_index(tmp_path)
    assert index.manifest == manifest
    assert [extent.row_count for extent in index.extents] == [3, 0, 301]
    assert [extent.offset_bytes for extent in index.extents] == [0, 4096, 8192]
    assert [extent.size_bytes for extent in index.extents] == [4096, 4096, 12288]
    assert index.documents.get([303, 0, 0]) == [DOCUMENTS[303], DOCUMENTS[0], DOCUMENTS[0]]
    index.close()
    index.close()
    assert read_everything(tmp_path) == 304


@pytest.mark.parametrize("name", [*INDEX_FILES, MANIFEST_NAME])
def test_any_flipped_byte_is_found_when_it_is_read(tmp_path: Path, name: str) -> None:
    write_index(tmp_path)
    content = (tmp_path / name).read_bytes()
    places = sorted({0, len(content) - 1, *np.random.default_rng(3).integers(0, len(content), 25).tolist()})
    for place in places:
        (tmp_path / name).write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
        with pytest.raises((CorruptionError, ConfigError)):
            read_everything(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert read_everything(tmp_path) == 304


@pytest.mark.parametrize("name", INDEX_FILES)
def test_a_file_that_is_short_or_missing_is_corruption_with_its_name(tmp_path: Path, name: str) -> None:
    write_index(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1])
    with pytest.raises(CorruptionError, match=name) as caught:
        open_index(tmp_path)
    assert (caught.value.path, caught.value.offset_bytes) == (str(tmp_path / name), len(content) - 1)
    (tmp_path / name).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        open_index(tmp_path)


@given(count=st.integers(0, 70), dimension=st.integers(1, 33), cluster=st.integers(0, 2**31))
def test_a_cluster_comes_back_as_aligned_read_only_views_of_the_buffer(
    count: int, dimension: int, cluster: int
) -> None:
    numbers = np.random.default_rng(count * 100 + dimension)
    vectors = numbers.normal(size=(count, dimension)).astype(np.float32)
    rows = numbers.integers(0, 2**40, size=count)
    content = encode_cluster(vectors, rows)
    assert len(content) == extent_size_bytes(count, dimension)
    assert len(content) % PAGE_BYTES == 0
    crc32 = extent_crc32(cluster, count, content)
    extent = ClusterExtent(cluster=cluster, offset_bytes=0, size_bytes=len(content), row_count=count, crc32=crc32)
    with mmap.mmap(-1, len(content) + PAGE_BYTES) as buffer:
        buffer[: len(content)] = content
        found = decode_cluster(buffer, extent, dimension)
        assert found.cluster == cluster
        assert np.array_equal(found.vectors, vectors)
        assert np.array_equal(found.rows, rows)
        assert not found.vectors.flags.owndata
        assert found.rows.flags.aligned
        assert not (found.vectors.flags.writeable or found.rows.flags.writeable)
        del found


def test_a_cluster_read_for_another_one_is_damage() -> None:
    content = encode_cluster(np.ones((2, 3), np.float32), np.arange(2))
    crc32 = extent_crc32(4, 2, content)
    extent = ClusterExtent(cluster=5, offset_bytes=8192, size_bytes=4096, row_count=2, crc32=crc32)
    with pytest.raises(CorruptionError, match="cluster 5 at byte 8192") as caught:
        decode_cluster(content, extent, 3, path="here.seg")
    assert (caught.value.path, caught.value.offset_bytes) == ("here.seg", 8192)


def test_a_cluster_of_another_dimension_or_a_short_buffer_is_damage() -> None:
    content = encode_cluster(np.ones((2000, 3), np.float32), np.arange(2000))
    extent = ClusterExtent(
        cluster=1, offset_bytes=0, size_bytes=len(content), row_count=2000, crc32=extent_crc32(1, 2000, content)
    )
    for buffer, dimension in ((content, 4), (content[:-1], 3), (b"", 3)):
        with pytest.raises(CorruptionError, match="rows of dimension"):
            decode_cluster(buffer, extent, dimension)


@pytest.mark.parametrize("rows", [[-1, 0], [0, 2**40], [0]])
def test_row_numbers_that_do_not_fit_are_not_written(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="row numbers"):
        encode_cluster(np.ones((2, 3), np.float32), np.array(rows))


def test_no_index_is_an_error_that_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder.*carpool index build"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no manifest"):
        read_manifest(tmp_path)
    (tmp_path / ".build").mkdir()
    with pytest.raises(ConfigError, match=r"interrupted.*again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("found", ["v1", "faiss"])
def test_a_foreign_or_newer_format_is_refused_with_rebuild(tmp_path: Path, found: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(f'{{"format":"{found}","what":"else"}}')
    with pytest.raises(ConfigError, match=f"'{found}'.*[Rr]ebuild"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"format":7}', b'{"format":"v0"}', b"\xff\xfe", b'{"format":"v0","manifest":{}}']
)
def test_a_manifest_that_is_none_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(CorruptionError, match="damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nprobe_default": 4}, "nprobe_default 4 is more than nlist 3"),
        ({"read_latency_us": (1, 2)}, "2 entries for 3 clusters"),
        ({"files": {}}, "lists no"),
        ({"dimension": 6}, "dimension 6"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    write_index(tmp_path, **changes)
    with pytest.raises(ConfigError, match=says):
        open_index(tmp_path)


@pytest.mark.parametrize("changes", [{"row_count": 303}, {"nlist": 2, "dimension": 5}, {"centroids_fingerprint": "0"}])
def test_files_that_do_not_fit_the_manifest_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write_index(tmp_path, **({"read_latency_us": ()} | changes))
    with pytest.raises((CorruptionError, ConfigError)):
        open_index(tmp_path)


def test_the_manifest_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == encode_manifest(manifest)
    assert not list(tmp_path.glob("*.tmp"))


def test_extents_with_a_gap_are_refused(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    index = open_index(tmp_path)
    index.close()
    moved = [msgspec.structs.replace(extent, offset_bytes=extent.offset_bytes + PAGE_BYTES) for extent in index.extents]
    write_extents(tmp_path, moved)
    entry = FileEntry(size_bytes=manifest.file(EXTENTS_NAME).size_bytes, crc32=file_crc32(tmp_path / EXTENTS_NAME))
    write_manifest(tmp_path, msgspec.structs.replace(manifest, files={**manifest.files, EXTENTS_NAME: entry}))
    with pytest.raises(CorruptionError, match="cluster 0 does not fit"):
        open_index(tmp_path)


def test_documents_of_two_rows_swapped_are_damage(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    offsets = bytearray((tmp_path / OFFSETS_NAME).read_bytes())
    offsets[:16], offsets[16:32] = offsets[16:32], offsets[:16]
    (tmp_path / OFFSETS_NAME).write_bytes(offsets)
    with DocumentStore.open(tmp_path, manifest) as store:
        assert store.get([2]) == [DOCUMENTS[2]]
        with pytest.raises(CorruptionError, match="row 0") as caught:
            store.get([2, 0])
        assert caught.value.path == str(tmp_path / DOCUMENTS_NAME)


def test_a_row_that_is_not_there_is_an_index_error(tmp_path: Path) -> None:
    with DocumentStore.open(tmp_path, write_index(tmp_path)) as store:
        for row in (-1, 304):
            with pytest.raises(IndexError, match="304"):
                store.get([row])


def test_a_document_that_could_never_be_read_is_not_written(tmp_path: Path) -> None:
    writer = DocumentWriter(tmp_path)
    with pytest.raises(ValueError, match="at most"):
        writer.append(Document("big", "", "x" * (16 << 20)))
    writer.abandon()


def test_probing_takes_the_largest_inner_products_first_and_ties_by_id() -> None:
    centroids = np.array([[0, 1], [1, 0], [0, 1], [-1, 0]], dtype=np.float32)
    queries = np.array([[1, 0], [0, 1], [0, -1]], dtype=np.float32)
    assert probe(centroids, queries, 3).tolist() == [[1, 0, 2], [0, 2, 1], [1, 3, 0]]
    assert probe(centroids, queries, 9).shape == (3, 4)
    assert probe(centroids, queries[:0], 2).shape == (0, 2)
    assert probe(centroids, queries, 1).dtype == np.int32


@given(seed=st.integers(0, 2**32 - 1), nlist=st.integers(1, 40), count=st.integers(0, 600), nprobe=st.integers(1, 50))
def test_probing_in_chunks_is_the_dumb_sort_of_every_query(seed: int, nlist: int, count: int, nprobe: int) -> None:
    numbers = np.random.default_rng(seed)
    # Small whole numbers: scores are exact, so ties are real and chunks cannot change them.
    centroids = numbers.integers(-3, 4, size=(nlist, 3)).astype(np.float32)
    queries = numbers.integers(-3, 4, size=(count, 3)).astype(np.float32)
    dumb = [sorted(range(nlist), key=lambda c: (-float(query @ centroids[c]), c))[:nprobe] for query in queries]
    assert probe(centroids, queries, nprobe).tolist() == dumb


def test_probing_refuses_no_probes_and_a_wrong_dimension() -> None:
    centroids = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="nprobe is 0"):
        probe(centroids, centroids, 0)
    with pytest.raises(ValueError, match=r"expected \(n, 3\)"):
        probe(centroids, np.ones((1, 4), dtype=np.float32), 1)


def test_the_fingerprint_of_centroids_follows_each_number_and_the_shape(tmp_path: Path) -> None:
    centroids = np.arange(6, dtype=np.float32).reshape(2, 3)
    changed = centroids.copy()
    changed[1, 2] = np.nextafter(changed[1, 2], np.float32(9))
    prints = {centroids_fingerprint(array) for array in (centroids, changed, centroids.reshape(3, 2))}
    assert len(prints) == 3
    write_centroids(tmp_path, centroids)
    assert (tmp_path / CENTROIDS_NAME).stat().st_size == 24


def test_settings_refuse_an_empty_folder() -> None:
    assert IndexSettings().check() == []
    assert len(IndexSettings(dir=" ").check()) == 1
