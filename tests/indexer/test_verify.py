"""Damage is found wherever it is, and named."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.disk.files import file_crc32
from carpool.disk.index import INDEX_FILES, open_index
from carpool.disk.manifest import MANIFEST_NAME, FileEntry, read_manifest, write_manifest
from carpool.disk.segment import EXTENTS_NAME, SEGMENT_NAME, decode_cluster, encode_cluster, extent_crc32, write_extents
from carpool.errors import CarpoolError, ConfigError
from indexer.progress import SilentProgress
from indexer.stats import index_stats
from indexer.verify import verify_index
from tests.indexer.helpers import build, write_corpus


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    build(write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index")
    return tmp_path / "index"


def test_a_whole_index_has_no_problems(index_dir: Path) -> None:
    report = verify_index(index_dir, SilentProgress())
    assert (report.problems, report.cluster_count, report.row_count) == ((), 10, 120)
    assert report.size_bytes == sum((index_dir / name).stat().st_size for name in INDEX_FILES)


@pytest.mark.parametrize("name", [*INDEX_FILES, MANIFEST_NAME])
def test_a_flipped_byte_anywhere_is_found(index_dir: Path, name: str) -> None:
    content = (index_dir / name).read_bytes()
    for place in [0, len(content) - 1, *np.random.default_rng(5).integers(0, len(content), 10).tolist()]:
        (index_dir / name).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            problems = verify_index(index_dir, SilentProgress()).problems
        except ConfigError as error:  # the format's own name was hit
            problems = (str(error),)
        assert any(name in problem for problem in problems), (place, problems)
    (index_dir / name).write_bytes(content)
    assert verify_index(index_dir, SilentProgress()).problems == ()


@pytest.mark.parametrize("name", INDEX_FILES)
@pytest.mark.parametrize("how", ["missing", "cut", "longer"])
def test_a_missing_short_or_long_file_is_found_and_the_others_are_read(index_dir: Path, name: str, how: str) -> None:
    content = (index_dir / name).read_bytes()
    if how == "missing":
        (index_dir / name).unlink()
    else:
        (index_dir / name).write_bytes(content[:-1] if how == "cut" else content + b"\0")
    problems = verify_index(index_dir, SilentProgress()).problems
    assert problems
    others = [other for other in INDEX_FILES if other != name]
    assert not any(str(index_dir / other) in problem for problem in problems for other in others)
    with pytest.raises(CarpoolError, match=name):
        index_stats(index_dir)


def test_a_damaged_cluster_and_a_damaged_document_are_both_named(index_dir: Path) -> None:
    index = open_index(index_dir)
    index.close()
    segment = bytearray((index_dir / SEGMENT_NAME).read_bytes())
    segment[index.extents[3].offset_bytes] ^= 1
    (index_dir / SEGMENT_NAME).write_bytes(segment)
    documents = bytearray((index_dir / "documents.dat").read_bytes())
    documents[-1] ^= 1
    (index_dir / "documents.dat").write_bytes(documents)
    problems = "\n".join(verify_index(index_dir, SilentProgress()).problems)
    assert f"cluster 3 at byte {index.extents[3].offset_bytes} is damaged" in problems
    assert "the document of row 119 is damaged" in problems


@pytest.mark.parametrize(
    ("first_row", "says"), [(5, "not in exactly one cluster"), (10**6, "a row number that the index does not have")]
)
def test_rows_that_are_counted_wrong_are_found_although_every_checksum_is_right(
    index_dir: Path, first_row: int, says: str
) -> None:
    index = open_index(index_dir)
    index.close()
    content = bytearray((index_dir / SEGMENT_NAME).read_bytes())
    extent = max(index.extents, key=lambda extent: extent.row_count)
    dimension = index.manifest.dimension
    found = decode_cluster(content[extent.offset_bytes :], extent, dimension)
    rows = found.rows.copy()
    rows[0] = rows[1] if first_row == 5 else first_row
    encoded = encode_cluster(found.vectors, rows)
    del found
    content[extent.offset_bytes : extent.offset_bytes + extent.size_bytes] = encoded
    (index_dir / SEGMENT_NAME).write_bytes(content)
    crc32 = extent_crc32(extent.cluster, extent.row_count, encoded)
    write_extents(
        index_dir,
        [msgspec.structs.replace(e, crc32=crc32) if e.cluster == extent.cluster else e for e in index.extents],
    )
    files = dict(index.manifest.files)
    for name in (SEGMENT_NAME, EXTENTS_NAME):
        files[name] = FileEntry(size_bytes=files[name].size_bytes, crc32=file_crc32(index_dir / name))
    write_manifest(index_dir, msgspec.structs.replace(index.manifest, files=files))
    (problem,) = verify_index(index_dir, SilentProgress()).problems
    assert says in problem


def test_a_folder_without_an_index_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="build one"):
        verify_index(tmp_path, SilentProgress())


def test_stats_are_those_of_the_clusters(index_dir: Path) -> None:
    found = index_stats(index_dir)
    manifest = read_manifest(index_dir)
    index = open_index(index_dir)
    index.close()
    rows = sorted(extent.row_count for extent in index.extents)
    assert (found.cluster_rows.min, found.cluster_rows.max, found.cluster_rows.mean) == (rows[0], rows[-1], 12.0)
    assert found.cluster_rows.p50 == rows[4]
    assert (found.row_count, found.nlist, found.nprobe_default) == (120, 10, 8)
    assert found.index_version == manifest.index_version
    assert found.size_bytes == sum(found.files_bytes.values())
