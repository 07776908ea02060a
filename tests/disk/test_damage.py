"""Damage of every kind in every file of an index is detected; nothing read is ever wrong.

Every byte matters, padding included. Only files with the same bytes can be exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.documents import DOCUMENTS_NAME, ENTRY_BYTES, OFFSETS_NAME
from carpool.disk.extents import HEADER_BYTES, segment_name
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import MANIFEST_NAME
from carpool.errors import ConfigError, CorruptionError
from indexer.progress import SilentProgress
from indexer.verify import verify_index
from tests.disk.helpers import (
    Content,
    as_bytes,
    make_content,
    read_everything,
    read_one,
    write_index,
)
from tests.seed import SEED

DETECTED = (CorruptionError, ConfigError)
FLIPS = 400
MIXTURES = 150
# Three segments, the last two of the same size; clusters 3, 4, 6 and 7 are of the same size; one is
# empty.
ROW_COUNTS = (3, 0, 60, 16, 16, 20, 16, 16, 20)
CONTENT = make_content(row_counts=ROW_COUNTS)
OTHER_CORPUS = make_content(row_counts=ROW_COUNTS, corpus=2)
OTHER_SEED = make_content(row_counts=ROW_COUNTS, seed=2)


@contextmanager
def opened(folder: Path) -> Iterator[OpenIndex]:
    index = open_index(folder)
    try:
        yield index
    finally:
        index.close()


def file_names(index: OpenIndex) -> list[str]:
    return [MANIFEST_NAME, *index.manifest.files]


@contextmanager
def flipped(path: Path, place: int, change: int) -> Iterator[None]:
    """Changes one byte of a file, and restores it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(descriptor, 1, place)
        os.pwrite(descriptor, bytes([byte[0] ^ change]), place)
        yield
        os.pwrite(descriptor, byte, place)
    finally:
        os.close(descriptor)


@contextmanager
def exchanged(one: tuple[Path, int], other: tuple[Path, int], size_bytes: int) -> Iterator[None]:
    """Exchanges two ranges of bytes, and restores them."""

    def exchange() -> None:
        contents = [path.read_bytes()[place : place + size_bytes] for path, place in (one, other)]
        for (path, place), content in zip((other, one), contents, strict=True):
            with path.open("r+b") as file:
                file.seek(place)
                file.write(content)

    exchange()
    yield
    exchange()


def seeded_flips(index: OpenIndex) -> list[tuple[str, int, int]]:
    """File, position and change of every flip: half of them by file, half by byte."""
    numbers = np.random.default_rng(SEED)
    names = file_names(index)
    sizes = np.array([(index.dir / name).stat().st_size for name in names])
    by_file = np.arange(FLIPS // 2) % len(names)
    by_byte = numbers.choice(len(names), FLIPS - FLIPS // 2, p=sizes / sizes.sum())
    files = np.concatenate((by_file, by_byte))
    places = (numbers.random(FLIPS) * sizes[files]).astype(int)
    changes = numbers.integers(1, 256, FLIPS)
    return [
        (names[file], int(place), int(change))
        for file, place, change in zip(files, places, changes, strict=True)
    ]


def document_spans(folder: Path) -> list[tuple[int, int]]:
    """Where each document begins and ends."""
    kind = [("offset", "<u8"), ("size", "<u4"), ("rest", "V12")]
    entries = np.fromfile(folder / OFFSETS_NAME, dtype=kind)
    ends = entries["offset"] + entries["size"]
    return list(zip(entries["offset"].tolist(), ends.tolist(), strict=True))


def test_a_checksum_covers_every_byte_of_every_file(tmp_path: Path) -> None:
    write_index(tmp_path, CONTENT)
    with opened(tmp_path) as index:
        for segment, path in enumerate(index.segment_paths):
            end_bytes = HEADER_BYTES
            for extent in (extent for extent in index.extents if extent.segment == segment):
                assert extent.offset_bytes == end_bytes
                end_bytes += extent.size_bytes
            assert end_bytes == path.stat().st_size
    starts, ends = map(list, zip(*document_spans(tmp_path), strict=True))
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == (tmp_path / DOCUMENTS_NAME).stat().st_size
    assert (tmp_path / OFFSETS_NAME).stat().st_size == ENTRY_BYTES * len(starts)


def test_hundreds_of_flipped_bytes_are_all_detected_and_verify_lists_them(tmp_path: Path) -> None:
    write_index(tmp_path, CONTENT)
    before = as_bytes(*read_everything(tmp_path))
    with opened(tmp_path) as index:
        flips = seeded_flips(index)
    for name, place, change in flips:
        with (
            flipped(tmp_path / name, place, change),
            pytest.raises(DETECTED, match=file_named(name)),
        ):
            read_everything(tmp_path)
    assert verify_index(tmp_path, SilentProgress()).problems == ()
    for name, place, change in flips[::5]:
        with flipped(tmp_path / name, place, change):
            try:
                problems = verify_index(tmp_path, SilentProgress()).problems
            except ConfigError as error:  # the name of the format was hit
                problems = (str(error),)
            assert any(name in problem for problem in problems), (name, place, change)
    assert as_bytes(*read_everything(tmp_path)) == before


def file_named(name: str) -> str:
    """The file that an error names; a wrong entry may name the file of documents."""
    return "documents" if name.startswith("documents") else name


def test_exchanged_pages_are_damage_for_both_clusters(tmp_path: Path) -> None:
    write_index(tmp_path, CONTENT)
    with opened(tmp_path) as index:
        pages = [
            (
                extent.cluster,
                (index.segment_paths[extent.segment], extent.offset_bytes + page * 4096),
            )
            for extent in index.extents
            for page in range(extent.page_count)
        ]
        assert len(pages) == 14
        for (one, at), (other, there) in combinations(pages, 2):
            with exchanged(at, there, 4096):
                for cluster in (one, other):
                    with pytest.raises(CorruptionError, match=f"of cluster {cluster} "):
                        read_one(index, cluster)
    read_everything(tmp_path)


def test_exchanged_entries_and_documents_of_the_same_length_are_damage(tmp_path: Path) -> None:
    write_index(tmp_path, CONTENT)
    offsets, documents = tmp_path / OFFSETS_NAME, tmp_path / DOCUMENTS_NAME
    with opened(tmp_path) as index:
        for row in range(index.manifest.row_count - 1):
            with exchanged(
                (offsets, row * ENTRY_BYTES), (offsets, (row + 1) * ENTRY_BYTES), ENTRY_BYTES
            ):
                for damaged in (row, row + 1):
                    with pytest.raises(CorruptionError, match=f"row {damaged} "):
                        index.documents.document(damaged)
        spans = document_spans(tmp_path)
        same = [
            (one, other)
            for one, other in combinations(range(len(spans)), 2)
            if length(spans[one]) == length(spans[other])
        ]
        assert len(same) > 100
        for one, other in same:
            with exchanged(
                (documents, spans[one][0]), (documents, spans[other][0]), length(spans[one])
            ):
                for damaged in (one, other):
                    with pytest.raises(CorruptionError, match=f"row {damaged} "):
                        index.documents.document(damaged)
    read_everything(tmp_path)


def length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def test_a_file_of_any_other_length_or_missing_is_refused_at_open(tmp_path: Path) -> None:
    write_index(tmp_path, CONTENT)
    with opened(tmp_path) as index:
        names = file_names(index)
    for name in names:
        path = tmp_path / name
        content = path.read_bytes()
        size = len(content)
        longer = [content + b"\0", content + bytes(4096), content + content]
        shorter = [
            content[:length]
            for length in {0, 1, size // 2, size - 4096, size - 1}
            if 0 <= length < size
        ]
        for changed in shorter + longer:
            path.write_bytes(changed)
            with pytest.raises(DETECTED, match=name) as caught:
                open_index(tmp_path)
            if isinstance(caught.value, CorruptionError):
                assert caught.value.path == str(path)
        path.unlink()
        with pytest.raises(DETECTED, match=name):
            open_index(tmp_path)
        path.write_bytes(content)
    read_everything(tmp_path)


def test_files_that_are_cut_while_they_are_open_are_damage_when_they_are_read(
    tmp_path: Path,
) -> None:
    write_index(tmp_path, CONTENT)
    with opened(tmp_path) as index:
        last = index.extents[-1]
        os.truncate(index.segment_paths[last.segment], last.offset_bytes + last.size_bytes - 1)
        with pytest.raises(CorruptionError, match="1 bytes early"):
            read_one(index, last.cluster)
        for name in (DOCUMENTS_NAME, OFFSETS_NAME):
            os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 1)
            with pytest.raises(CorruptionError, match=rf"{name} ends at byte .* 1 bytes early"):
                index.documents.document(index.manifest.row_count - 1)


@pytest.mark.parametrize("other", [OTHER_CORPUS, OTHER_SEED], ids=["corpus", "seed"])
def test_any_mixture_of_the_files_of_two_builds_is_refused(tmp_path: Path, other: Content) -> None:
    today, older, mixed = (tmp_path / name for name in ("today", "older", "mixed"))
    manifests = [write_index(today, CONTENT), write_index(older, other)]
    names = [MANIFEST_NAME, *manifests[0].files]
    assert all(
        (today / name).stat().st_size == (older / name).stat().st_size
        for name in names
        if name != MANIFEST_NAME
    )
    whole = [{name: (folder / name).read_bytes() for name in names} for folder in (today, older)]
    mixed.mkdir()
    numbers = np.random.default_rng(SEED)
    choices = [[bit == number for bit in range(len(names))] for number in range(len(names))]
    choices += [list(map(bool, numbers.integers(0, 2, len(names)))) for _ in range(MIXTURES)]
    for choice in choices:
        for is_older, name in zip(choice, names, strict=True):
            (mixed / name).unlink(missing_ok=True)
            os.link((today, older)[is_older] / name, mixed / name)
        if {name: (mixed / name).read_bytes() for name in names} in whole:
            read_everything(mixed)
            continue
        with pytest.raises(DETECTED):
            read_everything(mixed)


def test_a_single_page_or_document_of_an_older_build_is_damage(tmp_path: Path) -> None:
    today, older = tmp_path / "today", tmp_path / "older"
    write_index(today, CONTENT)
    write_index(older, OTHER_CORPUS)
    with opened(today) as index:
        for extent in index.extents:
            name = segment_name(extent.segment)
            for page in range(extent.page_count):
                place = extent.offset_bytes + page * 4096
                if not extent.row_count:
                    continue  # a page of zeros, the same in both
                says = f"of cluster {extent.cluster} at byte {place} "
                with (
                    exchanged((today / name, place), (older / name, place), 4096),
                    pytest.raises(CorruptionError, match=says),
                ):
                    read_one(index, extent.cluster)
        for row, (start, end) in enumerate(document_spans(today)):
            with (
                exchanged(
                    (today / DOCUMENTS_NAME, start), (older / DOCUMENTS_NAME, start), end - start
                ),
                pytest.raises(CorruptionError, match=f"row {row} "),
            ):
                index.documents.document(row)
