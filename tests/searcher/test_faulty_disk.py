"""A faulty disk is late, fails, reads too little, flips a bit or hangs where it is set to."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageBatch, ThreadPageReads
from searcher.store.waker import Waker
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead
from tests.waiting import WAIT_S, wait_until

PAGE = 4096
CONTENT = np.random.default_rng(1).integers(0, 256, 8 * PAGE, np.uint8).tobytes()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    path, waker = tmp_path / "a.seg", Waker()
    path.write_bytes(CONTENT)
    files = SegmentFiles([path], "auto")
    disk = FaultyDisk(ThreadPageReads(files, waker, SystemClock()), waker)
    yield disk
    disk.release()
    assert disk.close(WAIT_S)
    files.close()
    waker.close()


def begin(disk: FaultyDisk, *pages: int) -> PageBatch:
    """Reads some pages as one batch."""
    batch = PageBatch(
        files=np.zeros(len(pages), np.int64),
        offsets_bytes=np.array(pages) * PAGE,
        sizes_bytes=np.full(len(pages), PAGE),
        buffer=memoryview(mmap.mmap(-1, len(pages) * PAGE)),
    )
    disk.submit(batch)
    return batch


def next_ended(disk: FaultyDisk) -> PageBatch:
    (batch,) = wait_until(disk.poll, "a batch ends")
    return batch


def only(page: int, fault: Fault) -> Callable[[PageRead], Fault]:
    return lambda read: fault if read.offset_bytes == page * PAGE else None


def page_at(batch: PageBatch, position: int) -> bytes:
    return bytes(batch.buffer[position * PAGE :][:PAGE])


def test_a_late_read_delays_its_batch_and_no_other(disk: FaultyDisk) -> None:
    disk.fault = only(0, 0.3)
    before_s = time.monotonic()
    late, other = begin(disk, 0, 2), begin(disk, 1)
    assert next_ended(disk) is other and page_at(other, 0) == CONTENT[PAGE : 2 * PAGE]
    assert late.ended.tolist() == [False, True] or not late.ended.any()
    assert next_ended(disk) is late and page_at(late, 0) == CONTENT[:PAGE]
    assert time.monotonic() - before_s >= 0.3
    assert late.ended.all() and not late.errors


def test_a_batch_hangs_until_it_is_released_and_the_disk_does_not_close_before(
    disk: FaultyDisk,
) -> None:
    disk.fault = only(0, "hang")
    hanging, other = begin(disk, 0, 2), begin(disk, 1)
    assert next_ended(disk) is other
    while not disk.hanging:
        assert disk.poll() == []
    disk.wait_until_hanging()
    assert hanging.ended.tolist() == [False, True]
    assert not disk.close(0.0)
    disk.release()
    assert next_ended(disk) is hanging
    assert hanging.ended.all() and page_at(hanging, 0) == CONTENT[:PAGE]
    with pytest.raises(TimeoutError, match="0 batches hang"):
        disk.wait_until_hanging(timeout_s=0.01)


def test_a_short_read_names_the_byte_where_the_file_ended_and_a_failed_one_its_error(
    disk: FaultyDisk,
) -> None:
    no_cable = RetryableError("the cable is out")
    disk.fault = lambda read: "short" if read.offset_bytes == 2 * PAGE else no_cable
    begin(disk, 2, 3)
    batch = next_ended(disk)
    short = batch.errors[0]
    assert isinstance(short, CorruptionError) and short.offset_bytes == 2 * PAGE + PAGE // 2
    assert batch.errors[1] is no_cable
    assert disk.seen == [PageRead(0, 2 * PAGE, PAGE), PageRead(0, 3 * PAGE, PAGE)]


def test_a_flipped_bit_is_the_only_one_that_is_wrong(disk: FaultyDisk) -> None:
    disk.fault = lambda read: "flip"
    begin(disk, 4)
    found, stored = page_at(next_ended(disk), 0), CONTENT[4 * PAGE : 5 * PAGE]
    assert [at for at in range(PAGE) if found[at] != stored[at]] == [PAGE // 2]
    assert found[PAGE // 2] ^ stored[PAGE // 2] == 1
