"""Reads the codes of clusters before their turn comes, several in one call of the kernel.

Codes are verified before they are taken. A read that hangs is given up, and its memory stays in use
until the kernel returns it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from carpool.arrays import UInt8
from carpool.clock import Clock
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.index import OpenCodes
from carpool.errors import ReadError, RetryableError
from schemas.record import ClusterId
from searcher.store.buffers import ReadBuffers
from searcher.store.page_reads import PageBatch, PageReads
from searcher.store.reads_in_flight import NO_MEMORY, ReadsInFlight


@dataclass(slots=True, eq=False)
class _Group:
    """A slot with reads that begin together. `holders`: reads in it, and batches in the kernel."""

    slot: int
    holders: int


@dataclass(slots=True, eq=False)
class _Read:
    """The read of the codes of a cluster; `group`: None before it begins."""

    cluster: ClusterId
    size_bytes: int
    group: _Group | None = None
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    is_wanted: bool = True
    has_ended: bool = False
    error: ReadError | None = None


class CodesReader:
    """Reads codes for one thread, in the order in which they are wanted."""

    def __init__(
        self,
        codes: OpenCodes,
        reads: PageReads,
        buffers: ReadBuffers,
        timeout_us: int,
        clock: Clock,
    ) -> None:
        """`reads` and `buffers` belong to the caller. A cluster must fit a slot."""
        self._codes = codes
        self._buffers = buffers
        self._in_flight = ReadsInFlight[tuple[_Group, list[_Read]]](
            reads, timeout_us, clock, lambda owner: self._let_go(owner[0])
        )
        self._next_ticket = 0
        self._wanted: dict[int, _Read] = {}  # not taken yet, by ticket
        self._unstarted: deque[_Read] = deque()

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

        What is returned is not wanted any more, and stays in memory until the next `advance`.
        """
        read = self._wanted[ticket]
        if read.error is None and not read.has_ended:
            return None
        view = read.view
        self.forget(ticket)
        size_bytes = self._codes.extents[read.cluster].size_bytes
        return read.error or np.frombuffer(view, np.uint8, size_bytes)

    def forget(self, ticket: int) -> None:
        """Does not want a cluster any more."""
        read = self._wanted.pop(ticket)
        read.is_wanted, read.view = False, memoryview(b"")
        if read.group is not None:
            self._let_go(read.group)
        elif read in self._unstarted:
            self._unstarted.remove(read)

    def advance(self) -> None:
        """Starts reads, and looks which have ended. Does not block."""
        for batch, (_, reads) in self._in_flight.ended():
            for position, read in enumerate(reads):
                if read.is_wanted:
                    self._judge(read, batch, position)
        while self._unstarted and self._begin():
            pass
        stuck = {group for group, _ in self._in_flight.stuck()}
        if self._unstarted and not self._buffers.free and len(stuck) == self._buffers.taken:
            for read in self._unstarted:
                read.error = RetryableError(NO_MEMORY)
            self._unstarted.clear()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where memory was lost."""
        groups = {read.group for read in self._wanted.values() if read.group is not None}
        groups |= {group for group, _ in (*self._in_flight.owners(), *self._in_flight.stuck())}
        assert self._buffers.taken == len({group.slot for group in groups}) == len(groups)

    def _begin(self) -> bool:
        """Begins the next reads, as many as fit a slot; returns False where none is free."""
        if not self._buffers.free:
            return False
        reads: list[_Read] = []
        pages = 0
        for read in self._unstarted:
            read_pages = read.size_bytes // PAGE_BYTES
            if pages + read_pages > self._buffers.slot_pages:
                break
            reads.append(read)
            pages += read_pages
        slot, buffer = self._buffers.take(pages)
        group, start = _Group(slot, len(reads)), 0
        for read in reads:
            self._unstarted.popleft()
            read.group, read.view = group, buffer[start : start + read.size_bytes]
            start += read.size_bytes
        self._submit(group, reads, buffer)
        return True

    def _submit(self, group: _Group, reads: list[_Read], buffer: memoryview) -> None:
        extents = [self._codes.extents[read.cluster] for read in reads]
        sizes = np.array([read.size_bytes for read in reads], np.int64)
        batch = PageBatch(
            owner=None,
            files=np.array([extent.segment for extent in extents], np.int64),
            offsets_bytes=np.array([extent.offset_bytes for extent in extents], np.int64),
            sizes_bytes=sizes,
            starts=np.cumsum(sizes) - sizes,
            buffer=buffer,
        )
        group.holders += 1
        self._in_flight.submit(batch, (group, reads))

    def _let_go(self, group: _Group) -> None:
        group.holders -= 1
        if not group.holders:
            self._buffers.give_back(group.slot)

    def _judge(self, read: _Read, batch: PageBatch[Any], position: int) -> None:
        """A read has ended: are the codes correct?"""
        error = batch.errors.get(position)
        extent = self._codes.extents[read.cluster]
        if error is None:
            file = self._codes.files[extent.segment]
            wrong = file.first_damaged(read.view, extent.offset_bytes // PAGE_BYTES)
            error = None if wrong is None else file.damaged(wrong)
        read.error = error
        read.has_ended = True
