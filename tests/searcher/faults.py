"""Disks that fail in tests of the searcher, and what goes wrong on them."""

from __future__ import annotations

from carpool.clock import SystemClock
from carpool.errors import RetryableError
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.waker import Waker
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead

FAIL = RetryableError("the disk said no")
SLOW = 0.002
EVERY_FAULT: tuple[Fault, ...] = (FAIL, "short", "flip", SLOW, "hang")


def no_fault(read: PageRead) -> Fault:
    """A disk that works again."""
    return None


class Disks(list[FaultyDisk]):
    """What `open_reads` wants: keeps the disks that it opens."""

    def __call__(self, files: SegmentFiles, waker: Waker) -> PageReads:
        self.append(FaultyDisk(ThreadPageReads(files, waker, SystemClock(), 4), waker))
        return self[-1]
