"""What the tests of the searcher as a stage share."""

from __future__ import annotations

import threading

import numpy as np

from carpool.clock import SystemClock
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.waker import Waker
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead
from tests.searcher.helpers import Float32, SmallIndex, normalised

CLUSTERS = tuple(range(8))


def questions(count: int, seed: int = 9) -> list[Float32]:
    return list(normalised(np.random.default_rng(seed).standard_normal((count, 16))))


class Gate:
    """A disk that holds every read of some clusters until the gate is opened."""

    def __init__(self, index: SmallIndex, held: frozenset[int] = frozenset(CLUSTERS)) -> None:
        self.clusters = {extent.offset_bytes: extent.cluster for extent in index.extents}
        self.held = held
        self.arrived = threading.Semaphore(0)
        self.is_open = False

    def __call__(self, files: SegmentFiles, waker: Waker) -> PageReads:
        self.disk = FaultyDisk(ThreadPageReads(files, waker, SystemClock()), waker, self.fault)
        return self.disk

    def fault(self, read: PageRead) -> Fault:
        cluster = self.clusters[read.offset_bytes]  # small clusters: one read each
        if cluster in self.held and not self.is_open:
            self.arrived.release()
            return "hang"
        return None

    def open(self) -> None:
        self.is_open = True
        self.disk.release()
