"""Segments are planned from row counts, written in several runs to the same bytes, and checked."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.extent_table import EXTENTS_NAME, read_extents, write_extents
from carpool.disk.extents import HEADER_BYTES, ClusterExtent, plan_extents, segment_name
from carpool.disk.files import read_exactly
from carpool.disk.index import open_index
from carpool.disk.manifest import FileEntry, Manifest, read_manifest, write_manifest
from carpool.disk.pages import PageLayout
from carpool.disk.segments import SegmentWriter, build_id_of, check_header
from carpool.errors import ConfigError, CorruptionError
from tests.disk.helpers import (
    ROW_COUNTS,
    Content,
    entry_of,
    make_content,
    read_everything,
    write_index,
)

LAYOUT = PageLayout(dimension=60, vector_dtype="float32", page_bytes=4096)
CONTENT = make_content()
BUILD_ID = 2**64 - 7


class Later(Manifest, frozen=True, kw_only=True):
    """The manifest of a later build."""

    compression: str = "none"


def extents_of(row_counts: tuple[int, ...] = ROW_COUNTS) -> tuple[ClusterExtent, ...]:
    return plan_extents(LAYOUT, row_counts, segment_bytes_max=24 << 10)


def append_next(writer: SegmentWriter, content: Content = CONTENT) -> None:
    writer.append(writer.next_cluster, content.vectors[content.clusters[writer.next_cluster]])


def write_all(folder: Path, build_id: int = BUILD_ID) -> dict[str, FileEntry]:
    writer = SegmentWriter(folder, layout=LAYOUT, build_id=build_id, extents=extents_of())
    while writer.remaining:
        append_next(writer)
    return writer.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.seg")}


@given(
    row_counts=st.lists(st.integers(0, 200), min_size=1, max_size=40),
    segment_bytes_max=st.integers(1, 200_000),
    page_bytes=st.sampled_from([4096, 8192]),
)
def test_extents_fill_one_segment_after_the_other(
    row_counts: list[int], segment_bytes_max: int, page_bytes: int
) -> None:
    layout = PageLayout(dimension=60, vector_dtype="float32", page_bytes=page_bytes)
    extents = plan_extents(layout, row_counts, segment_bytes_max=segment_bytes_max)
    assert [extent.cluster for extent in extents] == list(range(len(row_counts)))
    assert [extent.row_count for extent in extents] == row_counts
    segments: list[list[int]] = [[]]
    for count in row_counts:
        size_bytes = max(1, -(-count // layout.rows_per_page)) * page_bytes
        if segments[-1] and 4096 + sum(segments[-1]) + size_bytes > segment_bytes_max:
            segments.append([])
        segments[-1].append(size_bytes)
    simple = [
        (n, 4096 + sum(sizes[:i]), size)
        for n, sizes in enumerate(segments)
        for i, size in enumerate(sizes)
    ]
    assert [(e.segment, e.offset_bytes, e.size_bytes) for e in extents] == simple
    assert all(
        e.page_count * page_bytes == e.size_bytes and e.offset_bytes % 4096 == 0 for e in extents
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_index_comes_back_as_it_was_written(tmp_path: Path, dtype: str) -> None:
    manifest = write_index(tmp_path, CONTENT, vector_dtype=dtype)  # type: ignore[arg-type]
    assert manifest.segment_count > 1
    index = open_index(tmp_path)
    assert index.manifest == manifest
    assert index.layout.vector_dtype == dtype
    assert [path.name for path in index.segment_paths] == [
        segment_name(n) for n in range(manifest.segment_count)
    ]
    index.close()
    index.close()
    clusters, documents = read_everything(tmp_path)
    for cluster, rows in zip(clusters, CONTENT.clusters, strict=True):
        assert np.array_equal(
            cluster.vectors, CONTENT.vectors[rows].astype(dtype).astype(np.float32)
        )
    assert documents == [CONTENT.documents[row] for rows in CONTENT.clusters for row in rows]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("first_run", [0, 3, len(ROW_COUNTS) - 1])
def test_a_killed_writer_continues_after_the_last_finished_segment(
    tmp_path: Path, first_run: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    entries = write_all(whole)
    assert entries == {path.name: entry_of(path) for path in whole.iterdir()}
    writer = SegmentWriter(killed, layout=LAYOUT, build_id=BUILD_ID, extents=extents_of())
    for _ in range(first_run):
        append_next(writer)
    writer.abandon()
    segments_done = len(contents(killed))
    resumed = SegmentWriter(killed, layout=LAYOUT, build_id=BUILD_ID, extents=extents_of())
    assert resumed.next_cluster == sum(extent.segment < segments_done for extent in extents_of())
    while resumed.remaining:
        append_next(resumed)
    assert resumed.close() == entries
    assert contents(killed) == contents(whole)
    assert not list(killed.glob("*.tmp"))


def test_segments_of_another_build_or_plan_or_of_half_the_length_are_written_anew(
    tmp_path: Path,
) -> None:
    write_all(tmp_path, BUILD_ID - 1)
    older = contents(tmp_path)
    extents = extents_of()
    assert (
        SegmentWriter(tmp_path, layout=LAYOUT, build_id=BUILD_ID, extents=extents).next_cluster == 0
    )
    wider = plan_extents(LAYOUT, ROW_COUNTS, segment_bytes_max=40 << 10)
    assert (
        SegmentWriter(tmp_path, layout=LAYOUT, build_id=BUILD_ID - 1, extents=wider).next_cluster
        == 0
    )
    cut = tmp_path / segment_name(1)
    cut.write_bytes(cut.read_bytes()[:-4096])
    writer = SegmentWriter(tmp_path, layout=LAYOUT, build_id=BUILD_ID - 1, extents=extents)
    assert writer.next_cluster == sum(extent.segment == 0 for extent in extents)
    while writer.remaining:
        append_next(writer)
    writer.close()
    assert contents(tmp_path) == older


def test_a_writer_accepts_exactly_the_planned_clusters(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, layout=LAYOUT, build_id=1, extents=extents_of((2, 2)))
    vectors = np.ones((3, 60), np.float32)
    for cluster, count in ((1, 2), (0, 3)):
        with pytest.raises(ValueError, match="not what was planned"):
            writer.append(cluster, vectors[:count])
    writer.append(0, vectors[:2])
    with pytest.raises(ValueError, match="1 clusters are not written yet, the first is 1"):
        writer.close()
    writer.append(1, vectors[:2])
    with pytest.raises(ValueError, match="not what was planned"):
        writer.append(2, vectors[:2])
    writer.abandon()
    assert writer.close()[segment_name(0)].size_bytes == HEADER_BYTES + 2 * 4096


def test_a_build_id_depends_on_every_part_and_on_where_parts_end() -> None:
    seen = {
        build_id_of(*parts)
        for parts in ((b"a", b"b"), (b"ab",), (b"a", b"c"), (b"", b"ab"), (b"ab", b""), ())
    }
    assert len(seen) == 6
    assert all(0 <= build_id < 1 << 64 for build_id in seen)


def test_a_header_of_another_build_says_so_and_a_damaged_one_too(tmp_path: Path) -> None:
    write_all(tmp_path)
    extents = extents_of()
    path = tmp_path / segment_name(1)
    check_header(path, LAYOUT, extents, build_id=BUILD_ID, segment=1)
    for build_id, segment in ((BUILD_ID - 1, 1), (BUILD_ID, 0)):
        with pytest.raises(CorruptionError, match="two indexes were mixed"):
            check_header(path, LAYOUT, extents, build_id=build_id, segment=segment)
    with path.open("r+b") as file:
        file.seek(3000)
        file.write(b"x")
    with pytest.raises(CorruptionError, match="header is damaged") as caught:
        check_header(path, LAYOUT, extents, build_id=BUILD_ID, segment=1)
    assert (caught.value.path, caught.value.offset_bytes) == (str(path), 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"offset_bytes": 8192}, "cluster 0 does not fit"),
        ({"segment": 1}, "cluster 0 does not fit"),
        ({"row_count": 20}, "cluster 0 does not fit"),
        ({"row_count": 4}, "have 177 rows"),
        ({"page_count": 2, "row_count": 18}, "cluster 1 does not fit"),
        ({"cluster": 1}, "cluster 0 does not fit"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused_though_its_checksum_is_right(
    tmp_path: Path, change: dict[str, int], says: str
) -> None:
    manifest = write_index(tmp_path, CONTENT)
    extents = list(read_extents(tmp_path, manifest))
    extents[0] = msgspec.structs.replace(extents[0], **change)
    write_extents(tmp_path, extents)
    files = {**manifest.files, EXTENTS_NAME: entry_of(tmp_path / EXTENTS_NAME)}
    write_manifest(tmp_path, msgspec.structs.replace(manifest, files=files))
    with pytest.raises(CorruptionError, match=says):
        open_index(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"page_bytes": 8192}, "does not fit"),
        ({"page_bytes": 100}, "too small"),
        ({"segment_count": 3}, "rows in 4 segments"),
        ({"segment_count": 5}, "lists no codes-int4-000004.bin"),
        ({"row_count": 175}, "have 176 rows"),
        ({"vector_dtype": "float16"}, "does not fit"),
        ({"build_id": 5}, "mixed"),
        ({"build_id": 1 << 64}, "64 bits"),
        ({"documents_build_id": 5}, "document of row 0 is damaged"),
        ({"requires": ("tombstones",)}, "requires tombstones"),
        ({"nlist": 6}, "nlist|centroids"),
        ({"centroids_fingerprint": "0"}, "fingerprint"),
        ({"dimension": 61}, "dimension 61"),
        ({"files": {}}, "only 0 files are listed"),
        ({"nprobe_default": 8}, "more than nlist 7"),
    ],
)
def test_a_manifest_that_does_not_fit_the_files_is_refused(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    manifest = write_index(tmp_path, CONTENT)
    assert manifest.segment_count == 4
    write_manifest(tmp_path, msgspec.structs.replace(manifest, **change))
    with pytest.raises((CorruptionError, ConfigError), match=says):
        open_index(tmp_path)


def test_fields_of_a_later_build_are_ignored_unless_they_are_required(tmp_path: Path) -> None:
    manifest = write_index(tmp_path, CONTENT)
    write_manifest(tmp_path, Later(**msgspec.structs.asdict(manifest)))
    assert b"compression" in (tmp_path / "manifest.json").read_bytes()
    assert read_manifest(tmp_path) == manifest
    write_manifest(tmp_path, Later(**{**msgspec.structs.asdict(manifest), "vector_dtype": "int8"}))
    with pytest.raises(ConfigError, match=r"undamaged.*int8.*Use the build that wrote it"):
        read_manifest(tmp_path)


def test_a_read_that_the_kernel_cuts_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 7), offset)
    )
    with path.open("rb") as file:
        assert read_exactly(file.fileno(), 100, 50, "file") == bytes(range(50, 150))
        with pytest.raises(CorruptionError, match="ends at byte 200, 1 bytes early"):
            read_exactly(file.fileno(), 151, 50, "file")
