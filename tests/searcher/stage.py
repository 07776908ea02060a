"""What the tests of the searcher as a stage share."""

from __future__ import annotations

import threading

import numpy as np

from carpool.clock import SystemClock
from searcher.store.engine import BlockEngine, BlockRead
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import Float32, SmallIndex, normalised

CLUSTERS = tuple(range(8))


def questions(count: int, seed: int = 9) -> list[Float32]:
    return list(normalised(np.random.default_rng(seed).standard_normal((count, 16))))


class Gate:
    """An engine that holds every read of some clusters until the gate is opened."""

    def __init__(self, index: SmallIndex, held: frozenset[int] = frozenset(CLUSTERS)) -> None:
        self.clusters = {extent.offset_bytes: extent.cluster for extent in index.extents}
        self.held = held
        self.arrived = threading.Semaphore(0)
        self.opened = threading.Event()
        self.reads: list[int] = []

    def __call__(self, files: SegmentFiles) -> BlockEngine:
        self.files = files
        return ThreadEngine(self.read_block, depth=4, prefetch_depth=2, clock=SystemClock())

    def read_block(self, read: BlockRead) -> None:
        cluster = self.clusters[read.offset_bytes]  # small clusters: one block each
        self.reads.append(cluster)
        if cluster in self.held:
            self.arrived.release()
            assert self.opened.wait(30)
        self.files.read_block(read)
