"""Batches of small reads: every engine fills the buffers, and says what failed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.page_reads import PageBatch, PageReads, ThreadPageReads
from searcher.store.waker import Waker

PAGE = 4096
PAGES = 300


class Files:
    """Two files; a third is closed."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "a", folder / "b"]
        self.content = []
        for number, path in enumerate(self.paths):
            content = np.random.default_rng(number).integers(0, 256, PAGES * PAGE, np.uint8)
            path.write_bytes(content.tobytes())
            self.content.append(content)
        self.descriptors = [os.open(path, os.O_RDONLY) for path in self.paths]

    def descriptor(self, file: int) -> int:
        return self.descriptors[file] if file < 2 else 1 << 20

    def path(self, file: int) -> str:
        return f"file {file}"

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    opened = Files(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["ring", "threads"])
def reads(request: pytest.FixtureRequest, files: Files) -> Iterator[tuple[PageReads, Waker]]:
    waker = Waker()
    made: PageReads
    if request.param == "threads":
        made = ThreadPageReads(files, waker, SystemClock(), 4)
    else:
        ring = pytest.importorskip("searcher.store.ring_page_reads")
        try:
            made = ring.RingPageReads(files, waker, SystemClock())
        except OSError as error:
            pytest.skip(f"no io_uring: {error}")
    yield made, waker
    assert made.close(5)
    waker.close()


def batch_of(pages: list[tuple[int, int, int]]) -> PageBatch:
    """A batch of reads: file, first page, number of pages."""
    numbers = np.array(pages, np.int64)
    size = int(numbers[:, 2].sum()) * PAGE
    return PageBatch(
        files=numbers[:, 0],
        offsets_bytes=numbers[:, 1] * PAGE,
        sizes_bytes=numbers[:, 2] * PAGE,
        buffer=memoryview(mmap.mmap(-1, size)),
    )


def ended(reads: PageReads, waker: Waker, count: int) -> list[PageBatch]:
    found: list[PageBatch] = []
    while len(found) < count:
        waker.wait(10)
        found += reads.poll()
    return found


def expected(files: Files, batch: PageBatch) -> bytes:
    return b"".join(
        files.content[file][offset : offset + size].tobytes()
        for file, offset, size in zip(
            batch.files.tolist(),
            batch.offsets_bytes.tolist(),
            batch.sizes_bytes.tolist(),
            strict=True,
        )
    )


def test_many_batches_of_more_reads_than_fit_the_kernel_are_filled(
    files: Files, reads: tuple[PageReads, Waker]
) -> None:
    random = np.random.default_rng(3)
    batches = [
        batch_of(
            [
                (
                    int(random.integers(2)),
                    int(random.integers(PAGES - 3)),
                    int(random.integers(1, 4)),
                )
                for _ in range(700)
            ]
        )
        for _ in range(4)
    ]
    for batch in batches:
        reads[0].submit(batch)
    assert set(ended(*reads, 4)) == set(batches)
    for batch in batches:
        assert not batch.errors and not batch.unended and batch.ended.all()
        assert bytes(batch.buffer) == expected(files, batch)


def test_a_read_beyond_the_end_of_the_file_is_damage_and_the_others_are_filled(
    files: Files, reads: tuple[PageReads, Waker]
) -> None:
    batch = batch_of([(0, 5, 1), (1, PAGES, 1), (0, PAGES - 1, 2), (1, 7, 2)])
    reads[0].submit(batch)
    ended(*reads, 1)
    assert sorted(batch.errors) == [1, 2]
    for position, page in ((1, PAGES), (2, PAGES)):
        error = batch.errors[position]
        assert isinstance(error, CorruptionError) and error.offset_bytes == page * PAGE
    assert bytes(batch.buffer[:PAGE]) == files.content[0][5 * PAGE : 6 * PAGE].tobytes()
    assert bytes(batch.buffer[-2 * PAGE :]) == files.content[1][7 * PAGE : 9 * PAGE].tobytes()


def test_an_error_of_the_kernel_is_passing(files: Files, reads: tuple[PageReads, Waker]) -> None:
    batch = batch_of([(0, 1, 1), (2, 1, 1)])
    reads[0].submit(batch)
    ended(*reads, 1)
    assert list(batch.errors) == [1]
    assert isinstance(batch.errors[1], RetryableError) and "file 2 at byte 4096" in str(
        batch.errors[1]
    )


def test_of_a_read_that_reaches_the_end_within_a_page_the_rest_of_the_file_is_read(
    files: Files, reads: tuple[PageReads, Waker]
) -> None:
    end = (PAGES - 1) * PAGE + 100
    os.truncate(files.paths[0], end)
    direct = os.open(files.paths[0], os.O_RDONLY | os.O_DIRECT)
    os.dup2(direct, files.descriptors[0])
    os.close(direct)
    batch = batch_of([(0, PAGES - 3, 3), (0, 7, 1)])
    reads[0].submit(batch)
    ended(*reads, 1)
    error = batch.errors.pop(0)
    assert isinstance(error, CorruptionError) and error.offset_bytes == end and not batch.errors
    there = files.content[0][(PAGES - 3) * PAGE : end].tobytes()
    assert bytes(batch.buffer[: len(there)]) == there
