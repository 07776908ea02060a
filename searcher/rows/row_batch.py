"""A batch of rows that are read together: which of them are undamaged, and their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from carpool.arrays import Float32, Int64
from carpool.disk.checked_file import PAGE_BYTES, CheckedFile
from carpool.disk.pages import PageLayout
from carpool.errors import ReadError
from searcher.plan.row_pages import PlannedReads
from searcher.store.page_reads import PageBatch


@dataclass(kw_only=True, slots=True, eq=False)
class RowBatch:
    """Pairs of a query and a row. `owners`, `rows`: (n,) int64, by row; `owners`: keys of queries.

    `slot`: of the buffers.
    """

    owners: Int64
    rows: Int64
    planned: PlannedReads
    reads: PageBatch
    slot: int

    def bytes_by_owner(self) -> dict[int, int]:
        """Returns the bytes that are read for each query: a read counts for one that wants it."""
        first_rows = np.searchsorted(self.planned.starts, self.reads.starts)
        total: dict[int, int] = {}
        for owner, size_bytes in zip(
            self.owners[first_rows].tolist(), self.reads.sizes_bytes.tolist(), strict=True
        ):
            total[owner] = total.get(owner, 0) + size_bytes
        return total


def errors_of(
    batch: RowBatch, layout: PageLayout, sums: Sequence[CheckedFile]
) -> dict[int, ReadError]:
    """Returns the errors of a batch, by pair: of reads that failed, and of wrong checksums.

    `sums`: the side files, by segment.
    """
    starts, errors = batch.planned.starts, dict[int, ReadError]()
    for page, error in _bad_pages(batch, sums).items():
        begin, end = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
        for pair in np.flatnonzero((starts + layout.row_bytes > begin) & (starts < end)).tolist():
            errors.setdefault(pair, error)
    return errors


def _bad_pages(batch: RowBatch, sums: Sequence[CheckedFile]) -> dict[int, ReadError]:
    """The error of each page that was not read, or has a wrong checksum, by position."""
    planned, bad = batch.planned, dict[int, ReadError]()
    pages = zip(planned.files.tolist(), planned.pages.tolist(), strict=True)
    for at, (file, number) in enumerate(pages):
        page = batch.reads.buffer[at * PAGE_BYTES : (at + 1) * PAGE_BYTES]
        if not sums[file].is_correct(page, number):
            bad[at] = sums[file].damaged(number)
    for read, error in batch.reads.errors.items():
        begin, end = planned.bounds[read : read + 2].tolist()
        bad.update(dict.fromkeys(range(begin, end), error))
    return bad


def vectors_of(batch: RowBatch, layout: PageLayout, pairs: Int64) -> Float32:
    """Returns the vectors of `pairs`, (m,) int64 positions: (m, dim) float32, copies."""
    dtype = np.dtype("<f4" if layout.vector_dtype == "float32" else "<f2")
    buffer, size = batch.reads.buffer, dtype.itemsize
    # A view of a row at every number, of which few are taken.
    shape = (len(buffer) // size - layout.dimension + 1, layout.dimension)
    every = np.ndarray(shape, dtype, buffer, strides=(size, size))
    vectors: Float32 = every[batch.planned.starts[pairs] // size].astype(np.float32, copy=False)
    return vectors
