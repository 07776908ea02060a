"""Reads the rows that queries want: each page once, in batches, as far as there is memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from carpool.arrays import Bool, Float32, Int64
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.pages import PageLayout
from carpool.errors import ReadError
from searcher.plan.row_pages import plan_reads
from searcher.row_source import RowsRead
from searcher.store.page_reads import PageBatch
from searcher.store.reader import Reader


class Pairs(NamedTuple):
    """Pairs of a query and a row, by row. `owners`, `rows`, `starts`: (n,) int64.

    `owners`: keys of queries; `starts`: the first byte of each row behind the first page read.
    """

    owners: Int64
    rows: Int64
    starts: Int64


class RowReader:
    """Implements `RowVectors` by reads. The caller closes `reader`, that of the segments."""

    def __init__(
        self,
        layout: PageLayout,
        segment_first_pages: Int64,
        cluster_first_rows: Int64,
        reader: Reader[Pairs],
    ) -> None:
        """`segment_first_pages`: as `plan_reads` wants them; `cluster_first_rows`: (nlist,)."""
        self._reader = reader
        self._layout = layout
        self._first_pages = segment_first_pages
        self._first_rows = cluster_first_rows
        self._pages_max = reader.memory.block_bytes // PAGE_BYTES
        self._wanted: deque[tuple[Int64, Int64]] = deque()

    @property
    def waiting(self) -> int:
        """See `RowVectors`."""
        return len(self._wanted)

    @property
    def nlist(self) -> int:
        """See `RowVectors`."""
        return len(self._first_rows)

    @property
    def times_out_at_us(self) -> int | None:
        """See `RowVectors`."""
        return self._reader.times_out_at_us

    def check_integrity(self) -> None:
        """Raises `AssertionError` where buffers were lost."""
        self._reader.check_integrity()

    def clusters_of(self, rows: Int64) -> Int64:
        """See `RowVectors`."""
        return np.searchsorted(self._first_rows, rows, side="right") - 1

    def add(self, owners: Int64, rows: Int64) -> None:
        """See `RowVectors`."""
        self._wanted.append((owners, rows))

    def advance(self, are_wanted: Callable[[Int64], Bool]) -> list[RowsRead]:
        """See `RowVectors`."""
        read = [self._read_of(batch) for batch in self._reader.ended()]
        while self._wanted and self._reader.memory.free_bytes:
            self._submit(*self._take(are_wanted))
        if self._wanted and (error := self._reader.no_memory) is not None:
            read += self._fail_wanted(error)
        return read

    def pending(self) -> dict[int, int]:
        """See `RowVectors`."""
        counts = defaultdict[int, int](int)
        for owners in (
            *(owners for owners, _ in self._wanted),
            *(batch.owner.owners for batch in self._reader.in_kernel),
        ):
            for owner in owners.tolist():
                counts[owner] += 1
        return counts

    # ---- starting

    def _take(self, are_wanted: Callable[[Int64], Bool]) -> tuple[Int64, Int64]:
        """Returns the rows that all queries want, in rising order."""
        owners, rows = map(np.concatenate, zip(*self._wanted, strict=True))
        self._wanted.clear()
        kept = np.flatnonzero(are_wanted(owners))
        order = kept[np.argsort(rows[kept], kind="stable")]
        return owners[order], rows[order]

    def _submit(self, owners: Int64, rows: Int64) -> None:
        """Starts reads of the rows that fit a block; the others are wanted again."""
        if not len(rows):
            return
        planned = plan_reads(rows, self._layout, self._first_pages, self._pages_max)
        count = len(planned.starts)
        if count < len(rows):
            self._wanted.appendleft((owners[count:], rows[count:]))
        pairs = Pairs(owners[:count], rows[:count], planned.starts)
        self._reader.submit(pairs, planned.files, planned.offsets_bytes, planned.sizes_bytes)

    def _fail_wanted(self, error: ReadError) -> list[RowsRead]:
        """The rows that wait cannot be read."""
        none = np.empty(0, np.int64)
        vectors = np.empty((0, self._layout.dimension), np.float32)
        failed = [
            (owner, row, error)
            for owners, rows in self._wanted
            for owner, row in zip(owners.tolist(), rows.tolist(), strict=True)
        ]
        self._wanted.clear()
        return [RowsRead(none, none, vectors, failed, {})]

    # ---- ending

    def _read_of(self, batch: PageBatch[Pairs]) -> RowsRead:
        """Returns the rows of a batch."""
        owners, rows, starts = batch.owner
        starts = starts + batch.starts[0]
        errors = self._errors_of(batch, starts)
        failed = [(int(owners[pair]), int(rows[pair]), why) for pair, why in errors.items()]
        are_good = np.ones(len(owners), np.bool_)
        are_good[list(errors)] = False
        order = np.argsort(owners, kind="stable")
        order = order[are_good[order]]
        vectors = self._vectors_of(batch.buffer, starts[order])
        bytes_read = _bytes_by_owner(batch, starts)
        return RowsRead(owners[order], rows[order], vectors, failed, bytes_read)

    def _errors_of(self, batch: PageBatch[Pairs], starts: Int64) -> dict[int, ReadError]:
        """Returns the errors of the pairs that a read of the batch does not have, or not whole."""
        errors: dict[int, ReadError] = {}
        for read, error in batch.errors.items():
            begin = batch.starts[read] + batch.good_bytes[read]
            end = batch.starts[read] + batch.sizes_bytes[read]
            lacks = (starts + self._layout.row_bytes > begin) & (starts < end)
            errors |= dict.fromkeys(np.flatnonzero(lacks).tolist(), error)
        return errors

    def _vectors_of(self, buffer: memoryview, starts: Int64) -> Float32:
        """Returns the vectors that begin at `starts`: (n,) int64 -> (n, dim) float32, copies."""
        dtype, dimension = self._layout.number_type, self._layout.dimension
        # A view of a row at every number, of which few are taken.
        shape = (len(buffer) // dtype.itemsize - dimension + 1, dimension)
        every = np.ndarray(shape, dtype, buffer, strides=(dtype.itemsize, dtype.itemsize))
        vectors: Float32 = every[starts // dtype.itemsize].astype(np.float32, copy=False)
        return vectors


def _bytes_by_owner(batch: PageBatch[Pairs], starts: Int64) -> dict[int, int]:
    """Returns the bytes that are read for each query: a read counts for one that wants it."""
    total: dict[int, int] = {}
    owners = batch.owner.owners[np.searchsorted(starts, batch.starts)]
    for owner, size_bytes in zip(owners.tolist(), batch.sizes_bytes.tolist(), strict=True):
        total[owner] = total.get(owner, 0) + size_bytes
    return total
