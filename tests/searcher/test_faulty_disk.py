"""A faulty disk is late, fails, reads too little, flips a bit or hangs where it is set to."""

from __future__ import annotations

import mmap
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockRead
from searcher.store.factory import open_engine
from searcher.store.faulty import FaultyDisk
from searcher.store.files import SegmentFiles
from searcher.store.memory import MemoryEngine

PAGE = 4096
CONTENT = random.Random(1).randbytes(8 * PAGE)


class Reading:
    """Reads pages of one segment through a disk, a page a read; its token is its page."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.ended: dict[int, tuple[Any, int]] = {}
        self.buffers: dict[int, memoryview] = {}
        self.changed = threading.Condition()
        disk.start(self.end)

    def end(self, token: int, error: Any, latency_us: int) -> None:
        with self.changed:
            assert token not in self.ended, "a read ends once"
            self.ended[token] = (error, latency_us)
            self.changed.notify_all()

    def begin(self, *pages: int) -> None:
        for page in pages:
            self.buffers[page] = memoryview(mmap.mmap(-1, PAGE))  # aligned, as O_DIRECT wants it
            buffers = (self.buffers[page],)
            self.disk.submit(
                [BlockRead(token=page, file=0, offset_bytes=page * PAGE, buffers=buffers)]
            )

    def wait(self, page: int) -> Any:
        with self.changed:
            assert self.changed.wait_for(lambda: page in self.ended, timeout=30)
            return self.ended[page][0]

    def is_whole(self, page: int) -> bool:
        return self.buffers[page] == CONTENT[page * PAGE : (page + 1) * PAGE]


@pytest.fixture
def reading() -> Iterator[Reading]:
    disk: FaultyDisk = FaultyDisk(MemoryEngine([CONTENT], clock=SystemClock()))
    yield Reading(disk)
    disk.release()
    assert disk.close(30)


def only(page: int, fault: Any) -> Callable[[BlockRead], Any]:
    return lambda read: fault if read.offset_bytes == page * PAGE else None


def test_without_a_fault_it_is_the_engine_within(reading: Reading) -> None:
    reading.begin(0, 1)
    assert [reading.wait(page) for page in (0, 1)] == [None, None]
    assert reading.is_whole(0) and reading.is_whole(1)
    assert [read.token for read in reading.disk.seen] == [0, 1]


def test_a_late_read_comes_whole_counts_as_at_work_meanwhile_and_holds_up_no_other(
    reading: Reading,
) -> None:
    reading.disk.fault = only(0, 0.3)
    before_s = time.monotonic()
    reading.begin(0, 1)
    assert reading.wait(1) is None and 0 not in reading.ended
    assert reading.disk.with_kernel_since(SystemClock().now_us() + 1) == (0,)
    assert reading.wait(0) is None and reading.is_whole(0)
    assert time.monotonic() - before_s >= 0.3
    assert reading.ended[0][1] >= 300_000
    assert reading.disk.with_kernel_since(SystemClock().now_us() + 1) == ()


def test_a_read_hangs_until_it_is_released_and_the_disk_does_not_close_before(
    reading: Reading,
) -> None:
    reading.disk.fault = only(0, "hang")
    reading.begin(0, 1)
    assert reading.wait(1) is None
    reading.disk.wait_until_hanging()
    assert reading.disk.hanging == 1 and 0 not in reading.ended
    assert reading.disk.with_kernel_since(1) == (0,), "for longer than any time-out"
    assert not reading.disk.close(0.0)
    reading.disk.release()
    assert reading.wait(0) is None and reading.is_whole(0)
    with pytest.raises(TimeoutError, match="0 reads hang"):
        reading.disk.wait_until_hanging(timeout_s=0.01)


def test_a_short_read_names_the_byte_where_the_file_ended_and_a_failed_one_its_error(
    reading: Reading,
) -> None:
    reading.disk.fault = lambda read: (
        "short" if read.token == 2 else RetryableError("the cable is out")
    )
    reading.begin(2, 3)
    short, failed = reading.wait(2), reading.wait(3)
    assert isinstance(short, CorruptionError) and short.offset_bytes == 2 * PAGE + PAGE // 2
    assert isinstance(failed, RetryableError) and "cable" in str(failed)


def test_a_flipped_bit_is_the_only_one_that_is_wrong(reading: Reading) -> None:
    reading.disk.fault = lambda read: "flip"
    reading.begin(4)
    assert reading.wait(4) is None
    wrong = [at for at in range(PAGE) if reading.buffers[4][at] != CONTENT[4 * PAGE + at]]
    assert wrong == [PAGE // 2]
    assert reading.buffers[4][PAGE // 2] ^ CONTENT[4 * PAGE + PAGE // 2] == 1


def test_it_stands_around_real_files_too(tmp_path: Path) -> None:
    path = tmp_path / "0.seg"
    path.write_bytes(CONTENT)
    files = SegmentFiles([path], "auto")
    clock = SystemClock()
    disk = FaultyDisk(
        open_engine("threads", files, depth=2, prefetch_depth=1, clock=clock), only(0, 0.05), clock
    )
    reading = Reading(disk)
    reading.begin(0, 1)
    assert [reading.wait(page) for page in (0, 1)] == [None, None]
    assert reading.is_whole(0)
    assert disk.close(30)
    files.close()
