"""A faulty disk is late, fails, reads too little, flips a bit or hangs where it is set to."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockRead
from searcher.store.faulty import FaultyDisk
from tests.searcher.block_reads import PAGE, Ends, block, content
from tests.searcher.memory_engine import MemoryEngine

CONTENT = random.Random(1).randbytes(8 * PAGE)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk: FaultyDisk = FaultyDisk(MemoryEngine([CONTENT], clock=SystemClock()))
    yield disk
    disk.release()
    assert disk.close(30)


def begin(disk: FaultyDisk, *pages: int) -> tuple[Ends, dict[int, BlockRead]]:
    """Starts the disk and reads pages of its segment, a page a read; its token is its page."""
    ends = Ends()
    disk.start(ends)
    reads = {page: block(page, 0, page, 1) for page in pages}
    for read in reads.values():
        disk.submit([read])
    return ends, reads


def is_whole(read: BlockRead) -> bool:
    return content(read) == CONTENT[read.offset_bytes :][:PAGE]


def only(page: int, fault: Any) -> Callable[[BlockRead], Any]:
    return lambda read: fault if read.token == page else None


def test_a_late_read_delays_no_other_read_and_is_with_the_kernel_until_it_ends(
    disk: FaultyDisk,
) -> None:
    disk.fault = only(0, 0.3)
    before_s = time.monotonic()
    ends, reads = begin(disk, 0, 1)
    assert ends.wait(1) == {1: None} and is_whole(reads[1])
    assert disk.with_kernel_since(SystemClock().now_us() + 1) == (0,)
    assert ends.wait(2) == {0: None, 1: None} and is_whole(reads[0])
    assert time.monotonic() - before_s >= 0.3
    assert ends.latencies_us[-1] >= 300_000
    assert disk.with_kernel_since(SystemClock().now_us() + 1) == ()


def test_a_read_hangs_until_it_is_released_and_the_disk_does_not_close_before(
    disk: FaultyDisk,
) -> None:
    disk.fault = only(0, "hang")
    ends, reads = begin(disk, 0, 1)
    disk.wait_until_hanging()
    assert ends.wait(1) == {1: None}
    assert disk.hanging == 1
    assert disk.with_kernel_since(1) == (0,), "for longer than any time-out"
    assert not disk.close(0.0)
    disk.release()
    assert ends.wait(2) == {0: None, 1: None} and is_whole(reads[0])
    with pytest.raises(TimeoutError, match="0 reads hang"):
        disk.wait_until_hanging(timeout_s=0.01)


def test_a_short_read_names_the_byte_where_the_file_ended_and_a_failed_one_its_error(
    disk: FaultyDisk,
) -> None:
    disk.fault = lambda read: "short" if read.token == 2 else RetryableError("the cable is out")
    ends, _ = begin(disk, 2, 3)
    errors = ends.wait(2)
    short, failed = errors[2], errors[3]
    assert isinstance(short, CorruptionError) and short.offset_bytes == 2 * PAGE + PAGE // 2
    assert isinstance(failed, RetryableError) and "cable" in str(failed)


def test_a_flipped_bit_is_the_only_one_that_is_wrong(disk: FaultyDisk) -> None:
    disk.fault = lambda read: "flip"
    ends, reads = begin(disk, 4)
    assert ends.wait(1) == {4: None}
    found, stored = content(reads[4]), CONTENT[4 * PAGE : 5 * PAGE]
    assert [at for at in range(PAGE) if found[at] != stored[at]] == [PAGE // 2]
    assert found[PAGE // 2] ^ stored[PAGE // 2] == 1
