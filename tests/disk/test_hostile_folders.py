"""A folder that was made to break its reader is refused: what is wrong, soon, in little memory."""

from __future__ import annotations

import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
import numpy as np
import pytest

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, write_centroids
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore, _checksum
from carpool.disk.extent_table import EXTENTS_NAME
from carpool.disk.extents import segment_name
from carpool.disk.files import file_crc32
from carpool.disk.index import open_index
from carpool.disk.manifest import MANIFEST_NAME, FileEntry, _enclose, read_manifest, write_manifest
from carpool.errors import ConfigError, CorruptionError
from indexer.progress import ProgressReport
from indexer.stats import index_stats
from indexer.verify import verify_index
from tests.disk.helpers import entry_of, make_content, write_index

SECONDS_MAX = 1.0
MEMORY_BYTES_MAX = 100_000_000
HUGE = 1 << 38
TB = 1 << 40
FILES = (CENTROIDS_NAME, EXTENTS_NAME, segment_name(0), DOCUMENTS_NAME, OFFSETS_NAME)

Spoil = Callable[[Path], None]


def changed(**fields: object) -> Spoil:
    """Returns a change of the manifest, whose checksum stays right."""

    def spoil(folder: Path) -> None:
        write_manifest(folder, msgspec.structs.replace(read_manifest(folder), **fields))

    return spoil


def nested(folder: Path) -> None:
    depth = 100_000
    body = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
    (folder / MANIFEST_NAME).write_bytes(_enclose("v2", body))


def nested_outside(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


def long_number(folder: Path) -> None:
    content = (folder / MANIFEST_NAME).read_bytes()
    body = content[content.index(b'"manifest":') + 11 : -2]
    body = body.replace(b'"nlist": ', b'"nlist": ' + b"9" * 4_000)
    (folder / MANIFEST_NAME).write_bytes(_enclose("v2", body))


def many_numbers(folder: Path) -> None:
    body = b'{"files":[' + b"1," * 60_000_000 + b"1]}"
    (folder / MANIFEST_NAME).write_bytes(_enclose("v2", body))


def fifo(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


def endless(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink()
    (folder / MANIFEST_NAME).symlink_to("/dev/zero")


def sparse_manifest(folder: Path) -> None:
    os.truncate(folder / MANIFEST_NAME, TB)


def sparse(name: str, size_bytes: int, **fields: object) -> Spoil:
    """Returns a change: a file is nothing but a hole, and the manifest agrees."""

    def spoil(folder: Path) -> None:
        os.truncate(folder / name, size_bytes)
        files = dict(read_manifest(folder).files)
        files[name] = FileEntry(size_bytes=size_bytes, crc32=0)
        changed(files=files, **fields)(folder)

    return spoil


def centroids(value: float) -> Spoil:
    def spoil(folder: Path) -> None:
        manifest = read_manifest(folder)
        shape = (manifest.nlist, manifest.dimension)
        found = np.fromfile(folder / CENTROIDS_NAME, dtype="<f4").reshape(shape)
        found[-1, 3] = value
        write_centroids(folder, found)
        files = dict(manifest.files)
        files[CENTROIDS_NAME] = entry_of(folder / CENTROIDS_NAME)
        changed(files=files, centroids_fingerprint=centroids_fingerprint(found))(folder)

    return spoil


def document(content: bytes) -> Spoil:
    """Returns a change: the first document has other bytes, with the right checksum."""

    def spoil(folder: Path) -> None:
        manifest = read_manifest(folder)
        offset_bytes = (folder / DOCUMENTS_NAME).stat().st_size
        with (folder / DOCUMENTS_NAME).open("ab") as file:
            file.write(content)
        checksum = _checksum(manifest.documents_build_id, 0, offset_bytes, content)
        entry = np.array([(offset_bytes, len(content), 0, checksum)], dtype="<u8,<u4,<u4,<u8")
        with (folder / OFFSETS_NAME).open("r+b") as file:
            file.write(entry.tobytes())
        files = {name: entry_of(folder / name) for name in manifest.files}
        assert files[OFFSETS_NAME].crc32 == file_crc32(folder / OFFSETS_NAME)
        changed(files=files)(folder)

    return spoil


HOSTILE: dict[str, tuple[Spoil, str]] = {
    "nested manifest": (nested, "nested"),
    "nested envelope": (nested_outside, "nested"),
    "number of 4,000 digits": (long_number, r"nlist"),
    "120 MB of numbers": (many_numbers, "at most"),
    "manifest without end": (endless, "regular file"),
    "sparse manifest": (sparse_manifest, "at most"),
    "huge segment_count": (changed(segment_count=HUGE), "segment_count"),
    "huge nlist": (changed(nlist=HUGE), "nlist|centroids"),
    "huge dimension": (changed(dimension=HUGE), "too small for rows"),
    "huge pages": (changed(page_bytes=HUGE), "page"),
    "huge pages and dimension": (changed(page_bytes=HUGE, dimension=HUGE >> 4), "page"),
    "huge row_count": (changed(row_count=HUGE), "rows"),
    "sparse centroids": (
        sparse(CENTROIDS_NAME, (1 << 30) * 240, nlist=1 << 30, row_count=1 << 32),
        "hole",
    ),
    "sparse extents": (sparse(EXTENTS_NAME, TB), "clusters"),
    "sparse documents.idx": (sparse(OFFSETS_NAME, (1 << 34) * 24, row_count=1 << 34), "rows|row 0"),
    "NaN": (centroids(float("nan")), "not normalised"),
    "infinity": (centroids(float("inf")), "not normalised"),
    "overflow": (centroids(3e38), "not normalised"),
    "nested document": (document(b"\x93\xa1a\xa0" + b"\x91" * 100_000 + b"\xc0"), "row 0"),
    "more in a document": (document(b"\x94\xa1a\xa0\xa0" + b"\x91" * 9_000 + b"\xc0"), "row 0"),
    "no document": (document(b"\xc1"), "row 0"),
    **{f"FIFO as {name}": (fifo(name), "regular file") for name in (MANIFEST_NAME, *FILES)},
}


class SlowError(Exception):
    """Opening took too long."""


@contextmanager
def limited() -> Iterator[None]:
    """Ends what takes too long with `SlowError`; fails on what took too much memory."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SlowError

    before = signal.signal(signal.SIGALRM, stop)
    tracemalloc.start()
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_index(tmp_path / "index", make_content())
    return tmp_path / "index"


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_at_opening_and_by_every_command_that_looks_at_an_index(
    folder: Path, name: str
) -> None:
    spoil, words = HOSTILE[name]
    spoil(folder)
    with limited(), pytest.raises((ConfigError, CorruptionError), match=words) as refused:
        open_index(folder).close()
    assert str(folder) in str(refused.value) or "manifest" in str(refused.value)
    assert len(str(refused.value)) < 1_000
    problems: tuple[str, ...] = ()
    with limited():
        try:
            problems = verify_index(folder, ProgressReport()).problems
        except ConfigError as error:
            problems = (str(error),)
        with suppress(ConfigError, CorruptionError):
            index_stats(folder)
    assert problems


def test_a_fifo_that_appears_after_the_check_does_not_block(folder: Path) -> None:
    manifest = read_manifest(folder)
    fifo(OFFSETS_NAME)(folder)
    with limited(), pytest.raises(CorruptionError, match="regular file"):
        DocumentStore(folder, manifest.row_count, manifest.documents_build_id)
