"""Reads the rows that queries want: each page once, in batches, as far as buffers are free.

A read that fails with a passing error is tried again. A read that hangs is given up; its buffer
stays out of use until the kernel returns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.disk.checked_file import CheckedFile
from carpool.disk.pages import PageLayout
from carpool.errors import RetryableError
from searcher.plan.row_pages import plan_reads, row_places, split_rows
from searcher.rows.row_batch import RowBatch, check_rows, vectors_of
from searcher.store.buffers import ReadBuffers
from searcher.store.page_reads import PageBatch, PageReads, ReadError
from searcher.store.reads_in_flight import NO_MEMORY, ReadsInFlight

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class FailedRow(NamedTuple):
    """A row that could not be read, and the query that wanted it."""

    owner: int
    row: int
    error: ReadError


class RowsRead(NamedTuple):
    """Rows that were read: `owners`, `rows` (n,) int64; `vectors` (n, dim) float32, copies.

    `bytes_by_owner`: what was read for each query; what several queries want counts for one.
    """

    owners: Int64
    rows: Int64
    vectors: Float32
    failed: tuple[FailedRow, ...]
    bytes_by_owner: dict[int, int]


class _Wanted(NamedTuple):
    owners: Int64
    rows: Int64
    attempt: int


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
        self._wanted.append(_Wanted(owners, rows, 1))

    def advance(self, are_wanted: Callable[[Int64], Bool]) -> list[RowsRead]:
        """Starts reads, and returns what was read since the last call. Does not block.

        `are_wanted` says of which owners rows are still wanted: (n,) int64 -> (n,) bool.
        """
        ended = [self._read_of(batch) for _, batch in self._in_flight.ended()]
        failed = self._start(are_wanted)
        return ended if failed is None else [*ended, failed]

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

    def _start(self, are_wanted: Callable[[Int64], Bool]) -> RowsRead | None:
        """Starts reads while there are buffers; returns rows that will never have one."""
        while self._wanted:
            if not self._buffers.free:
                return None if len(self._in_flight) else self._fail_wanted()
            taken = self._take(are_wanted)
            if len(taken.owners):
                self._submit(taken)
        return None

    def _take(self, are_wanted: Callable[[Int64], Bool]) -> _Wanted:
        """Returns rows that fit a buffer: of all queries together, of one attempt."""
        attempt = self._wanted[0].attempt
        same = [wanted for wanted in self._wanted if wanted.attempt == attempt]
        self._wanted = deque(wanted for wanted in self._wanted if wanted.attempt != attempt)
        owners = np.concatenate([wanted.owners for wanted in same])
        rows = np.concatenate([wanted.rows for wanted in same])
        kept = are_wanted(owners)
        owners, rows = owners[kept], rows[kept]
        if not len(owners):
            return _Wanted(owners, rows, attempt)
        first, *rest = split_rows(rows, self._layout, self._buffers.slot_pages)
        if rest:
            left = np.concatenate(rest)
            self._wanted.appendleft(_Wanted(owners[left], rows[left], attempt))
        return _Wanted(owners[first], rows[first], attempt)

    def _submit(self, wanted: _Wanted) -> None:
        places = row_places(self._layout, wanted.rows)
        planned = plan_reads(places, self._first_pages)
        slot, buffer = self._buffers.take(len(planned.pages))
        reads = PageBatch(
            files=planned.files,
            offsets_bytes=planned.offsets_bytes,
            sizes_bytes=planned.sizes_bytes,
            buffer=buffer,
        )
        batch = RowBatch(
            owners=wanted.owners,
            rows=wanted.rows,
            places=places,
            planned=planned,
            reads=reads,
            slot=slot,
            attempt=wanted.attempt,
        )
        self._in_flight.submit(reads, batch)

    def _fail_wanted(self) -> RowsRead:
        """Every buffer is with reads that hang: the rows that wait cannot be read."""
        failed = tuple(
            FailedRow(owner, row, RetryableError(NO_MEMORY))
            for wanted in self._wanted
            for owner, row in zip(wanted.owners.tolist(), wanted.rows.tolist(), strict=True)
        )
        self._wanted.clear()
        none = np.empty(0, np.int64)
        vectors = np.empty((0, self._layout.dimension), np.float32)
        return RowsRead(none, none, vectors, failed, {})

    # ---- ending

    def _free(self, batch: RowBatch) -> None:
        self._buffers.give_back(batch.slot)

    def _read_of(self, batch: RowBatch) -> RowsRead:
        """Returns the rows of a batch; those with a passing error are wanted again."""
        is_good, errors = check_rows(batch, self._sums)
        again, failed = [], []
        for pair, error in errors.items():
            if self._in_flight.may_retry(batch.reads, error, batch.attempt):
                again.append(pair)
            else:
                failed.append(FailedRow(int(batch.owners[pair]), int(batch.rows[pair]), error))
        if again:
            at = np.array(again)
            self._wanted.append(_Wanted(batch.owners[at], batch.rows[at], batch.attempt + 1))
        return RowsRead(
            batch.owners[is_good],
            batch.rows[is_good],
            vectors_of(batch, self._layout, is_good),
            tuple(failed),
            batch.bytes_by_owner(),
        )
