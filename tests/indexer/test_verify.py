"""Damage is found wherever it is, and named."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.codes.kernel import kernel_in_use
from carpool.disk.document_rows import DOCUMENT_ROWS_NAME
from carpool.disk.extents import segment_name
from carpool.disk.files import file_crc32
from carpool.disk.index import files_of, index_files, open_index
from carpool.disk.manifest import FileEntry, read_manifest, write_manifest
from carpool.errors import CarpoolError
from indexer.progress import SilentProgress
from indexer.stats import index_stats
from indexer.verify import verify_index
from tests.indexer.helpers import build, write_corpus

NAMES = index_files(2, ["int4"])


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    manifest = build(
        write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index", segment_bytes_max=4096 * 6
    ).manifest
    assert files_of(manifest) == NAMES
    return tmp_path / "index"


def problems_of(index_dir: Path) -> tuple[str, ...]:
    return verify_index(index_dir, SilentProgress()).problems


def test_a_missing_short_or_long_file_is_found_and_the_others_are_read(index_dir: Path) -> None:
    report = verify_index(index_dir, SilentProgress())
    assert (report.problems, report.clusters, report.rows) == ((), 10, 120)
    assert report.size_bytes == sum((index_dir / name).stat().st_size for name in NAMES)
    for name in NAMES:
        content = (index_dir / name).read_bytes()
        for changed in (None, content[:-1], content + b"\0"):
            if changed is None:
                (index_dir / name).unlink()
            else:
                (index_dir / name).write_bytes(changed)
            problems = problems_of(index_dir)
            assert problems
            others = [f"{index_dir / other} " for other in NAMES if other != name]
            assert not any(other in problem for problem in problems for other in others)
            with pytest.raises(CarpoolError, match=name):
                index_stats(index_dir)
        (index_dir / name).write_bytes(content)


def test_segments_swapped_with_each_other_or_with_those_of_another_build_are_found(
    index_dir: Path, tmp_path: Path
) -> None:
    first, second = (index_dir / segment_name(number) for number in range(2))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    problems = "\n".join(problems_of(index_dir))
    assert "another build or another segment" in problems
    second.write_bytes(contents[1])
    build(tmp_path / "c.jsonl", tmp_path / "older", segment_bytes_max=4096 * 6, seed=1)
    older = (tmp_path / "older" / first.name).read_bytes()
    first.write_bytes(older[: len(contents[0])].ljust(len(contents[0]), b"\0"))
    assert "files of two indexes were mixed" in "\n".join(problems_of(index_dir))
    first.write_bytes(contents[0])
    assert problems_of(index_dir) == ()


@pytest.mark.parametrize("number", [5, 10**6])
def test_rows_that_are_counted_wrong_are_found_although_every_checksum_is_right(
    index_dir: Path, number: int
) -> None:
    path, manifest = index_dir / DOCUMENT_ROWS_NAME, read_manifest(index_dir)
    places = np.fromfile(path, "<u4")
    places[np.flatnonzero(places == 7)[0]] = number  # twice, or not a document
    path.write_bytes(places.tobytes())
    entry = FileEntry(size_bytes=path.stat().st_size, crc32=file_crc32(path))
    files = manifest.files | {path.name: entry}
    write_manifest(index_dir, msgspec.structs.replace(manifest, files=files))
    (problem, *_) = problems_of(index_dir)
    assert re.search(r"2 of \d+ rows are not in exactly one cluster|does not have the 120", problem)


def test_stats_are_those_of_the_clusters(index_dir: Path) -> None:
    found = index_stats(index_dir)
    manifest = read_manifest(index_dir)
    index = open_index(index_dir)
    index.close()
    rows = sorted(extent.row_count for extent in index.extents)
    spread = found.cluster_rows
    assert (spread.min, spread.p50, spread.max, spread.mean) == (rows[0], rows[4], rows[-1], 12.0)
    assert (found.row_count, found.nlist, found.nprobe_default) == (120, 10, 10)
    assert (found.index_version, found.kernel) == (manifest.index_version, kernel_in_use())
    assert found.size_bytes == sum(found.files_bytes.values())
    assert found.cluster_skew == round(sum(count * count for count in rows) / 120 / 12, 2)


def test_a_file_that_the_manifest_does_not_list_is_a_problem(index_dir: Path) -> None:
    manifest = read_manifest(index_dir)
    for name in (segment_name(1), "documents.dat"):
        files = {other: entry for other, entry in manifest.files.items() if other != name}
        write_manifest(index_dir, msgspec.structs.replace(manifest, files=files))
        problems = problems_of(index_dir)
        assert f"the manifest does not list {name}" in problems
