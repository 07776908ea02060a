"""Damage is found wherever it is, and named."""

import re
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.extents import segment_name
from carpool.disk.index import index_files, open_index
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from carpool.disk.pages import dense, encode_pages, page_seed
from carpool.disk.segments import read_cluster
from carpool.embedding import EmbeddingSettings
from carpool.errors import CarpoolError, ConfigError
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from indexer.stats import index_stats
from indexer.verify import verify_index
from tests.indexer.helpers import build, write_corpus

CONFIG = IndexerConfig(
    embedding=EmbeddingSettings(model="hashing:16"),
    indexer=IndexerSettings(shard_rows=16, threads=1, segment_bytes_max=4096 * 6),
)
NAMES = index_files(2)


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    manifest = build(write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index", CONFIG).manifest
    assert index_files(manifest.segment_count) == NAMES
    return tmp_path / "index"


def test_a_whole_index_has_no_problems(index_dir: Path) -> None:
    report = verify_index(index_dir, SilentProgress())
    assert (report.problems, report.cluster_count, report.row_count) == ((), 10, 120)
    assert report.size_bytes == sum((index_dir / name).stat().st_size for name in NAMES)


@pytest.mark.parametrize("name", [*NAMES, MANIFEST_NAME])
def test_a_flipped_byte_anywhere_is_found(index_dir: Path, name: str) -> None:
    content = (index_dir / name).read_bytes()
    for place in [
        0,
        len(content) - 1,
        *np.random.default_rng(5).integers(0, len(content), 10).tolist(),
    ]:
        (index_dir / name).write_bytes(content)
        flip(index_dir / name, place)
        try:
            problems = verify_index(index_dir, SilentProgress()).problems
        except ConfigError as error:  # the format's own name was hit
            problems = (str(error),)
        assert any(name in problem for problem in problems), (place, problems)
    (index_dir / name).write_bytes(content)
    assert verify_index(index_dir, SilentProgress()).problems == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["missing", "cut", "longer"])
def test_a_missing_short_or_long_file_is_found_and_the_others_are_read(
    index_dir: Path, name: str, how: str
) -> None:
    content = (index_dir / name).read_bytes()
    if how == "missing":
        (index_dir / name).unlink()
    else:
        (index_dir / name).write_bytes(content[:-1] if how == "cut" else content + b"\0")
    problems = verify_index(index_dir, SilentProgress()).problems
    assert problems
    others = [other for other in NAMES if other != name]
    assert not any(str(index_dir / other) in problem for problem in problems for other in others)
    with pytest.raises(CarpoolError, match=name):
        index_stats(index_dir)


def flip(path: Path, offset_bytes: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset_bytes] ^= 1
    path.write_bytes(content)


def test_a_damaged_cluster_and_a_damaged_document_are_both_named(index_dir: Path) -> None:
    index = open_index(index_dir)
    index.close()
    extent = index.extents[3]
    flip(index.segment_paths[extent.segment], extent.offset_bytes)
    flip(index_dir / "documents.dat", -1)
    problems = "\n".join(verify_index(index_dir, SilentProgress()).problems)
    assert f"page 0 of cluster 3 at byte {extent.offset_bytes} is damaged" in problems
    assert "the document of row 119 is damaged" in problems


def test_segments_swapped_with_each_other_or_with_those_of_another_build_are_found(
    index_dir: Path, tmp_path: Path
) -> None:
    first, second = (index_dir / segment_name(number) for number in range(2))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    problems = "\n".join(verify_index(index_dir, SilentProgress()).problems)
    assert "another build or another segment" in problems
    second.write_bytes(contents[1])
    build(tmp_path / "c.jsonl", tmp_path / "older", CONFIG, seed=1)
    older = (tmp_path / "older" / first.name).read_bytes()
    first.write_bytes(older[: len(contents[0])].ljust(len(contents[0]), b"\0"))
    assert "files of two indexes were mixed" in "\n".join(
        verify_index(index_dir, SilentProgress()).problems
    )
    first.write_bytes(contents[0])
    assert verify_index(index_dir, SilentProgress()).problems == ()


@pytest.mark.parametrize(
    ("first_row", "says"),
    [
        (5, r"^2 of \d+ rows are not in exactly one cluster: row \d+ is in"),
        (10**6, "a row number that the index does not have"),
    ],
)
def test_rows_that_are_counted_wrong_are_found_although_every_seal_is_right(
    index_dir: Path, first_row: int, says: str
) -> None:
    index = open_index(index_dir)
    index.close()
    extent = max(index.extents, key=lambda extent: extent.row_count)
    path, build_id = index.segment_paths[extent.segment], index.manifest.build_id
    with path.open("r+b") as file:
        pages = read_cluster(
            file.fileno(), extent, layout=index.layout, build_id=build_id, path=str(path)
        )
        found = dense(pages)
        rows = found.rows.copy()
        rows[0] = rows[1] if first_row == 5 else first_row
        seed = page_seed(build_id=build_id, segment=extent.segment, cluster=extent.cluster)
        file.seek(extent.offset_bytes)
        file.write(encode_pages(index.layout, found.vectors, rows, seed=seed).tobytes())
    (problem,) = verify_index(index_dir, SilentProgress()).problems
    assert re.search(says, problem)


def test_a_folder_without_an_index_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="build one"):
        verify_index(tmp_path, SilentProgress())


def test_stats_are_those_of_the_clusters(index_dir: Path) -> None:
    found = index_stats(index_dir)
    manifest = read_manifest(index_dir)
    index = open_index(index_dir)
    index.close()
    rows = sorted(extent.row_count for extent in index.extents)
    assert (found.cluster_rows.min, found.cluster_rows.max, found.cluster_rows.mean) == (
        rows[0],
        rows[-1],
        12.0,
    )
    assert found.cluster_rows.p50 == rows[4]
    assert (found.row_count, found.nlist, found.nprobe_default) == (120, 10, 8)
    assert found.index_version == manifest.index_version
    assert found.size_bytes == sum(found.files_bytes.values())
    assert (found.cluster_rows_max_factor, found.cluster_rows_min_factor) == tuple(
        round(count / 12, 2) for count in (rows[-1], rows[0])
    )
    assert found.cluster_skew == round(sum(count * count for count in rows) / 120 / 12, 2)
    # 56 rows of 64 + 8 bytes fit a page of 4 KiB, and no cluster has as many: ten pages.
    assert (found.page_bytes, found.rows_per_page, found.segment_count) == (4096, 56, 2)
    assert found.page_use == round(120 * 72 / 40960, 3)
