"""Reads the codes of clusters, each into memory of its own, before their turn comes.

Codes are verified before they are taken. A read that fails with a passing error is tried again; one
that hangs is given up, and its memory stays in use until the kernel returns it.
"""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.index import OpenCodes
from carpool.errors import RetryableError
from schemas.record import ClusterId
from searcher.codes.source import ReadError
from searcher.store.page_reads import PageBatch, PageReads
from searcher.store.reads_in_flight import NO_MEMORY, ReadsInFlight

UInt8 = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class _Read:
    """The read of the codes of a cluster. `holders`: the kernel, and who wants it: of `buffer`."""

    cluster: ClusterId
    size_bytes: int
    buffer: memoryview = field(default_factory=lambda: memoryview(b""))
    holders: int = 0
    attempt: int = 1
    is_wanted: bool = True
    has_ended: bool = False
    error: ReadError | None = None


class CodesReader:
    """Reads codes for one thread, in the order in which they are wanted."""

    def __init__(
        self, codes: OpenCodes, reads: PageReads, bytes_max: int, timeout_us: int, clock: Clock
    ) -> None:
        """`reads` belong to the caller. `bytes_max`: of memory; a cluster alone may take more."""
        self._codes = codes
        self._bytes_max = bytes_max
        self._in_flight = ReadsInFlight[_Read](reads, timeout_us, clock, self._let_go)
        self._next_ticket = 0
        self._wanted: dict[int, _Read] = {}  # not taken yet, by ticket
        self._unstarted: deque[_Read] = deque()
        self._used_bytes = 0

    @property
    def unstarted_bytes(self) -> int:
        """Bytes that are wanted and not with the kernel yet."""
        return sum(read.size_bytes for read in self._unstarted)

    @property
    def times_out_at_us(self) -> int | None:
        """When the oldest read in progress is given up; None while there is none."""
        return self._in_flight.times_out_at_us

    def want(self, cluster: ClusterId) -> int:
        """Reads the codes of a cluster, after those that were wanted before; returns a ticket."""
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        read = _Read(cluster, self._codes.extents[cluster].read_bytes)
        self._wanted[ticket] = read
        self._unstarted.append(read)
        return ticket

    def take(self, ticket: int) -> UInt8 | ReadError | None:
        """Returns the codes of a cluster, or why they cannot be read; None: they have not come.

        What is returned is not wanted any more.
        """
        read = self._wanted[ticket]
        if read.error is None and not read.has_ended:
            return None
        buffer = read.buffer
        self.forget(ticket)
        size_bytes = self._codes.extents[read.cluster].size_bytes
        return read.error or np.frombuffer(buffer, np.uint8, size_bytes)

    def forget(self, ticket: int) -> None:
        """Does not want a cluster any more."""
        read = self._wanted.pop(ticket)
        read.is_wanted = False
        if read.holders:
            self._let_go(read)
        elif read in self._unstarted:
            self._unstarted.remove(read)

    def advance(self) -> None:
        """Starts reads, and looks which have ended. Does not block."""
        for batch, read in self._in_flight.ended():
            if read.is_wanted:
                self._judge(read, batch)
        while self._unstarted:
            next_bytes = self._used_bytes + self._unstarted[0].size_bytes
            if self._used_bytes and next_bytes > self._bytes_max:
                break
            read = self._unstarted.popleft()
            read.buffer = memoryview(mmap.mmap(-1, read.size_bytes))
            read.holders = 1
            self._used_bytes += read.size_bytes
            self._submit(read)
        stuck_bytes = sum(read.size_bytes for read in self._in_flight.stuck())
        if self._unstarted and stuck_bytes == self._used_bytes:
            for read in self._unstarted:
                read.error = RetryableError(NO_MEMORY)
            self._unstarted.clear()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where memory was lost."""
        begun = {read for read in self._wanted.values() if read.holders}
        begun |= {*self._in_flight.owners(), *self._in_flight.stuck()}
        assert self._used_bytes == sum(read.size_bytes for read in begun)

    def _submit(self, read: _Read) -> None:
        extent = self._codes.extents[read.cluster]
        batch = PageBatch(
            files=np.array([extent.segment], np.int64),
            offsets_bytes=np.array([extent.offset_bytes], np.int64),
            sizes_bytes=np.array([read.size_bytes], np.int64),
            buffer=read.buffer,
        )
        read.holders += 1
        self._in_flight.submit(batch, read)

    def _let_go(self, read: _Read) -> None:
        read.holders -= 1
        if not read.holders:
            self._used_bytes -= read.size_bytes
            read.buffer = memoryview(b"")

    def _judge(self, read: _Read, batch: PageBatch) -> None:
        """A read has ended: are the codes correct, does it fail, or is it done again?"""
        error = batch.errors.get(0)
        if error is not None and self._in_flight.may_retry(batch, error, read.attempt):
            read.attempt += 1
            self._submit(read)
            return
        extent = self._codes.extents[read.cluster]
        if error is None:
            file = self._codes.files[extent.segment]
            pages = np.frombuffer(read.buffer, np.uint8).reshape(-1, PAGE_BYTES)
            wrong = file.first_damaged(pages, extent.offset_bytes // PAGE_BYTES)
            error = None if wrong is None else file.damaged(wrong)
        read.error = error
        read.has_ended = True
