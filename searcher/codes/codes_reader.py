"""Reads the codes of clusters before their turn comes, several in one call of the kernel."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from carpool.arrays import UInt8
from carpool.disk.extents import CodeExtent
from carpool.disk.index import OpenCodes
from carpool.errors import ReadError
from schemas.record import ClusterId
from searcher.store.page_reads import PageBatch
from searcher.store.reader import Reader


@dataclass(slots=True, eq=False)
class CodesRead:
    """The read of the codes of a cluster; `batch`: None before it begins."""

    extent: CodeExtent
    batch: PageBatch[list[CodesRead]] | None = None
    start: int = 0
    has_ended: bool = False
    error: ReadError | None = None


class CodesReader:
    """Reads codes for one thread, in the order in which they are wanted."""

    def __init__(self, codes: OpenCodes, reader: Reader[list[CodesRead]]) -> None:
        """`reader` reads the files of `codes`; the caller closes it. A cluster must fit a block."""
        self.reader = reader
        self._codes = codes
        self._unstarted: deque[CodesRead] = deque()

    @property
    def unstarted_bytes(self) -> int:
        """Bytes that are wanted and not with the kernel yet."""
        return sum(read.extent.read_bytes for read in self._unstarted)

    def want(self, cluster: ClusterId) -> CodesRead:
        """Reads the codes of a cluster, after those that were wanted before."""
        read = CodesRead(self._codes.extents[cluster])
        self._unstarted.append(read)
        return read

    def take(self, read: CodesRead) -> UInt8 | ReadError | None:
        """Returns the codes of a cluster, or why they cannot be read; None: they have not come.

        What is returned is not wanted any more, and stays in memory until the next `advance`.
        """
        if not read.has_ended:
            return None
        self.forget(read)
        return read.error or np.frombuffer(
            self.reader.memory.view, np.uint8, read.extent.size_bytes, read.start
        )

    def forget(self, read: CodesRead) -> None:
        """Does not want a cluster any more."""
        if read.batch is not None:
            self.reader.let_go(read.batch)
        elif not read.has_ended:
            self._unstarted.remove(read)

    def advance(self) -> None:
        """Starts reads, and looks which have ended. Does not block."""
        for batch in self.reader.ended():
            for position, read in enumerate(batch.owner):
                read.has_ended, read.error = True, batch.errors.get(position)
        while self._unstarted and self.reader.memory.free_bytes:
            self._begin()
        if self._unstarted and (error := self.reader.no_memory) is not None:
            for read in self._unstarted:
                read.has_ended, read.error = True, error
            self._unstarted.clear()

    def _begin(self) -> None:
        """Begins the next reads, as many as fit a block."""
        reads: list[CodesRead] = []
        left_bytes = self.reader.memory.block_bytes
        while self._unstarted and self._unstarted[0].extent.read_bytes <= left_bytes:
            reads.append(self._unstarted.popleft())
            left_bytes -= reads[-1].extent.read_bytes
        extents = [read.extent for read in reads]
        batch = self.reader.submit(
            reads,
            np.array([extent.segment for extent in extents], np.int64),
            np.array([extent.offset_bytes for extent in extents], np.int64),
            np.array([extent.read_bytes for extent in extents], np.int64),
        )
        batch.holders += len(reads)
        for read, start in zip(reads, batch.starts.tolist(), strict=True):
            read.batch, read.start = batch, start
