"""Batches of reads: threads fill the buffers, and say what failed."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.files import SegmentFiles
from searcher.store.kernel_page_reads import KernelPageReads
from searcher.store.page_reads import PageBatch, PageReads, ThreadPageReads
from searcher.store.waker import Waker
from tests.waiting import WAIT_S, wait_until

PAGE = 4096
PAGES = 300


class Files(SegmentFiles):
    """Two files, and a third that the kernel cannot read."""

    def __init__(self, folder: Path) -> None:
        paths = [folder / "a", folder / "b"]
        self.content = []
        for number, path in enumerate(paths):
            content = np.random.default_rng(number).integers(0, 256, PAGES * PAGE, np.uint8)
            path.write_bytes(content.tobytes())
            self.content.append(content)
        super().__init__([*paths, paths[0]], "auto")

    def descriptor(self, file: int) -> int:
        return super().descriptor(file) if file < 2 else 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    opened = Files(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=[ThreadPageReads, KernelPageReads])
def reads(files: Files, request: pytest.FixtureRequest) -> Iterator[tuple[PageReads, Waker]]:
    waker = Waker()
    made = request.param(files, waker, SystemClock())
    yield made, waker
    assert made.close(WAIT_S)
    assert made.close(WAIT_S), "closing twice"
    waker.close()


def batch_of(pages: list[tuple[int, int, int]]) -> PageBatch[None]:
    """A batch of reads: file, first page, number of pages."""
    numbers = np.array(pages, np.int64)
    sizes = numbers[:, 2] * PAGE
    return PageBatch(
        owner=None,
        files=numbers[:, 0],
        offsets_bytes=numbers[:, 1] * PAGE,
        sizes_bytes=sizes,
        starts=np.cumsum(sizes) - sizes,
        buffer=memoryview(mmap.mmap(-1, int(sizes.sum()))),
    )


def ended(reads: PageReads, waker: Waker, count: int) -> list[PageBatch[None]]:
    found: list[PageBatch[None]] = []

    def came() -> bool:
        waker.wait(0.1)
        found.extend(reads.poll())
        return len(found) >= count

    wait_until(came, lambda: f"{len(found)} batches have ended, not {count}", every_s=0)
    return found


def expected(files: Files, batch: PageBatch[None]) -> bytes:
    return b"".join(
        files.content[file][offset : offset + size].tobytes()
        for file, offset, size in zip(
            batch.files.tolist(),
            batch.offsets_bytes.tolist(),
            batch.sizes_bytes.tolist(),
            strict=True,
        )
    )


def test_many_batches_are_filled(files: Files, reads: tuple[PageReads, Waker]) -> None:
    random = np.random.default_rng(3)
    places = random.integers([0, 0, 1], [2, PAGES - 3, 4], (4, 700, 3))
    batches = [batch_of([tuple(one) for one in some]) for some in places.tolist()]
    for batch in batches:
        reads[0].submit(batch)
    assert set(ended(*reads, 4)) == set(batches)
    for batch in batches:
        assert (
            not batch.errors and not batch.unended and (batch.read_bytes == batch.sizes_bytes).all()
        )
        assert bytes(batch.buffer) == expected(files, batch)


def test_of_a_read_that_reaches_the_end_within_a_page_the_rest_of_the_file_is_read(
    files: Files, reads: tuple[PageReads, Waker]
) -> None:
    end = (PAGES - 1) * PAGE + 100
    os.truncate(files.path(0), end)
    batch = batch_of([(0, PAGES - 3, 3), (0, 7, 1), (2, 1, 1)])
    reads[0].submit(batch)
    ended(*reads, 1)
    error = batch.errors.pop(0)
    assert isinstance(error, CorruptionError) and error.offset_bytes == end
    assert batch.read_bytes.tolist() == [2 * PAGE + 100, PAGE, 0]
    there = files.content[0][(PAGES - 3) * PAGE : end].tobytes()
    assert bytes(batch.buffer[: len(there)]) == there
    assert isinstance(batch.errors[2], RetryableError), "of the kernel"
    assert list(batch.errors) == [2] and "a at byte 4096" in str(batch.errors[2])


def test_a_read_that_comes_in_pieces_is_put_together(
    files: Files, reads: tuple[PageReads, Waker], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_preadv, real_ends, pieces = os.preadv, KernelPageReads._take_ends, [0]

    def preadv(file: int, buffers: Sequence[memoryview], at: int) -> int:
        pieces[0] += 1
        return real_preadv(file, [buffers[0][:PAGE]], at)

    def first_pages(self: KernelPageReads) -> Any:
        ends = real_ends(self)
        pieces[0] += len(ends)
        return [(token, request, min(result, PAGE), more) for token, request, result, more in ends]

    monkeypatch.setattr("searcher.store.files.os.preadv", preadv)
    monkeypatch.setattr(KernelPageReads, "_take_ends", first_pages)
    batch = batch_of([(0, 5, 3), (1, 9, 2)])
    reads[0].submit(batch)
    ended(*reads, 1)
    assert bytes(batch.buffer) == expected(files, batch) and not batch.errors
    assert pieces == [5]


@pytest.mark.parametrize("times", [1, 2])
def test_a_read_that_the_kernel_fails_is_done_once_more(
    files: Files, reads: tuple[PageReads, Waker], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    real_fill, real_ends, left = files.fill, KernelPageReads._take_ends, [times]

    def fails(is_bad: bool) -> bool:
        left[0] -= is_bad
        return is_bad and left[0] >= 0

    def fill(file: int, view: memoryview, at: int) -> int:
        if fails(at == 7 * PAGE):
            raise OSError(errno.EIO, "the cable is out")
        return real_fill(file, view, at)

    def take_ends(self: KernelPageReads) -> Any:
        return [
            (token, request, -errno.EIO if fails(token & 0xFFFF == 1) else result, more)
            for token, request, result, more in real_ends(self)
        ]

    monkeypatch.setattr(files, "fill", fill)
    monkeypatch.setattr(KernelPageReads, "_take_ends", take_ends)
    batch = batch_of([(0, 5, 2), (1, 7, 1), (0, 9, 1)])
    reads[0].submit(batch)
    ended(*reads, 1)
    assert left == [times - 2], "it was done twice"
    assert batch.read_bytes.tolist() == [2 * PAGE, PAGE if times == 1 else 0, PAGE]
    assert all("b at byte 28672 failed" in str(error) for error in batch.errors.values())
    if times == 1:
        assert bytes(batch.buffer) == expected(files, batch) and not batch.errors
    else:
        assert isinstance(batch.errors[1], RetryableError) and len(batch.errors) == 1


def test_threads_that_close_drop_what_has_not_begun(files: Any) -> None:
    go_on, waker = threading.Event(), Waker()

    def wait(*_: object) -> int:
        assert go_on.wait(WAIT_S)
        return PAGE

    files.fill = wait
    reads = ThreadPageReads(files, waker, SystemClock(), 1)
    batches = [batch_of([(0, page, 1)]) for page in range(3)]
    for batch in batches:
        reads.submit(batch)
    wait_until(lambda: reads._busy)
    assert reads.close(0.0) is False
    go_on.set()
    assert reads.close(WAIT_S)
    assert [batch.unended for batch in batches] == [0, 1, 1]
    waker.close()
