"""Reads the rows that queries want: each page once, in batches, as far as buffers are free.

A read that hangs is given up; its buffer stays out of use until the kernel returns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from carpool.arrays import Bool, Float32, Int64
from carpool.clock import Clock
from carpool.disk.checked_file import PAGE_BYTES, CheckedFile
from carpool.disk.pages import PageLayout
from carpool.errors import ReadError, RetryableError
from searcher.plan.row_pages import plan_reads
from searcher.rows.row_batch import RowBatch, errors_of, vectors_of
from searcher.store.buffers import ReadBuffers
from searcher.store.page_reads import PageBatch, PageReads
from searcher.store.reads_in_flight import NO_MEMORY, ReadsInFlight


class RowsRead(NamedTuple):
    """Rows of the query `owner` that were read: `rows` (n,) int64; `vectors` (n, dim) float32.

    `failed`: rows that could not be read. `bytes_read`: for this query; what several queries want
    counts for one.
    """

    owner: int
    rows: Int64
    vectors: Float32
    failed: Sequence[tuple[int, ReadError]]
    bytes_read: int


class _Wanted(NamedTuple):
    owners: Int64
    rows: Int64


class RowReader:
    """Reads rows for one thread. `reads` and `buffers` belong to the caller."""

    def __init__(
        self,
        *,
        layout: PageLayout,
        sums: Sequence[CheckedFile],
        segment_first_pages: Int64,
        reads: PageReads,
        buffers: ReadBuffers,
        timeout_us: int,
        clock: Clock,
    ) -> None:
        """`sums`: the side files by segment; `segment_first_pages`: as `plan_reads` wants them."""
        self._layout = layout
        self._sums = sums
        self._first_pages = segment_first_pages
        self._buffers = buffers
        self._in_flight = ReadsInFlight[RowBatch](reads, timeout_us, clock, self._free)
        self._wanted: deque[_Wanted] = deque()

    @property
    def waiting(self) -> int:
        """The number of additions that wait for a buffer."""
        return len(self._wanted)

    @property
    def times_out_at_us(self) -> int | None:
        """When the oldest read in progress is given up; None while there is none."""
        return self._in_flight.times_out_at_us

    def add(self, owners: Int64, rows: Int64) -> None:
        """Wants `rows` for the queries `owners`, (n,) int64 each, n >= 1."""
        self._wanted.append(_Wanted(owners, rows))

    def advance(self, are_wanted: Callable[[Int64], Bool]) -> list[RowsRead]:
        """Starts reads, and returns what was read since the last call. Does not block.

        `are_wanted` says of which owners rows are still wanted: (n,) int64 -> (n,) bool.
        """
        read = [one for _, batch in self._in_flight.ended() for one in self._read_of(batch)]
        return read + self._start(are_wanted)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where buffers were lost or used twice."""
        batches = self._in_flight.owners() + self._in_flight.stuck()
        assert len({batch.slot for batch in batches}) == len(batches) == self._buffers.taken

    def pending(self) -> dict[int, int]:
        """Returns how many rows are not read yet, by owner; for tests."""
        counts: dict[int, int] = {}
        for owners in (
            *(wanted.owners for wanted in self._wanted),
            *(batch.owners for batch in self._in_flight.owners()),
        ):
            for owner in owners.tolist():
                counts[owner] = counts.get(owner, 0) + 1
        return counts

    # ---- starting

    def _start(self, are_wanted: Callable[[Int64], Bool]) -> list[RowsRead]:
        """Starts reads while there are buffers; returns rows that will never have one."""
        while self._wanted:
            if not self._buffers.free:
                return [] if len(self._in_flight) else self._fail_wanted()
            self._submit(*self._take(are_wanted))
        return []

    def _take(self, are_wanted: Callable[[Int64], Bool]) -> _Wanted:
        """Returns the rows that all queries want, in rising order."""
        owners, rows = map(np.concatenate, zip(*self._wanted, strict=True))
        self._wanted.clear()
        kept = np.flatnonzero(are_wanted(owners))
        order = kept[np.argsort(rows[kept], kind="stable")]
        return _Wanted(owners[order], rows[order])

    def _submit(self, owners: Int64, rows: Int64) -> None:
        """Starts reads of the rows that fit a buffer; the others are wanted again."""
        if not len(rows):
            return
        planned = plan_reads(rows, self._layout, self._first_pages, self._buffers.slot_pages)
        count = len(planned.starts)
        if count < len(rows):
            self._wanted.appendleft(_Wanted(owners[count:], rows[count:]))
        slot, buffer = self._buffers.take(len(planned.pages))
        begins, ends = planned.bounds[:-1], planned.bounds[1:]
        reads = PageBatch(
            files=planned.files[begins],
            offsets_bytes=planned.pages[begins] * PAGE_BYTES,
            sizes_bytes=(ends - begins) * PAGE_BYTES,
            buffer=buffer,
            starts=begins * PAGE_BYTES,
        )
        batch = RowBatch(
            owners=owners[:count],
            rows=rows[:count],
            planned=planned,
            reads=reads,
            slot=slot,
        )
        self._in_flight.submit(reads, batch)

    def _fail_wanted(self) -> list[RowsRead]:
        """Every buffer is with reads that hang: the rows that wait cannot be read."""
        none = np.empty(0, np.int64)
        vectors = np.empty((0, self._layout.dimension), np.float32)
        failed = [
            RowsRead(owner, none, vectors, [(row, RetryableError(NO_MEMORY))], 0)
            for wanted in self._wanted
            for owner, row in zip(wanted.owners.tolist(), wanted.rows.tolist(), strict=True)
        ]
        self._wanted.clear()
        return failed

    # ---- ending

    def _free(self, batch: RowBatch) -> None:
        self._buffers.give_back(batch.slot)

    def _read_of(self, batch: RowBatch) -> Iterator[RowsRead]:
        """Yields the rows of each query."""
        errors, bytes_read = errors_of(batch, self._layout, self._sums), batch.bytes_by_owner()
        failed = dict[int, list[tuple[int, ReadError]]]()
        for pair, error in errors.items():
            owner, row = int(batch.owners[pair]), int(batch.rows[pair])
            failed.setdefault(owner, []).append((row, error))
        by_owner = np.argsort(batch.owners, kind="stable")
        owners, rows = batch.owners[by_owner], batch.rows[by_owner]
        vectors = vectors_of(batch, self._layout, by_owner)
        begins = np.flatnonzero(owners[1:] != owners[:-1]) + 1
        for begin, end in pairwise([0, *begins.tolist(), len(owners)]):
            owner, here = int(owners[begin]), slice(begin, end)
            good = [pair not in errors for pair in by_owner[here]] if errors else slice(None)
            yield RowsRead(
                owner,
                rows[here][good],
                vectors[here][good],
                failed.get(owner, ()),
                bytes_read.get(owner, 0),
            )
