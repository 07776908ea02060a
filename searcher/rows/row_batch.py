"""A batch of rows that are read together: which of them are undamaged, and their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carpool.disk.checked_file import PAGE_BYTES, CheckedFile
from carpool.disk.pages import PageLayout
from searcher.plan.row_pages import PlannedReads, RowPlaces
from searcher.store.page_reads import PageBatch, ReadError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(kw_only=True, slots=True, eq=False)
class RowBatch:
    """Pairs of a query and a row. `owners`, `rows`: (n,) int64; `owners` are keys of queries.

    `slot`: of the buffers; `attempt` counts from 1.
    """

    owners: Int64
    rows: Int64
    places: RowPlaces
    planned: PlannedReads
    reads: PageBatch
    slot: int
    attempt: int = 1

    def bytes_by_owner(self) -> dict[int, int]:
        """Returns the bytes that are read for each query: a read counts for one that wants it."""
        positions = np.searchsorted(self.planned.pages, self.places.first_pages)
        reads = np.searchsorted(self.planned.first_of, positions, side="right") - 1
        numbers, pairs = np.unique(reads, return_index=True)
        owners, which = np.unique(self.owners[pairs], return_inverse=True)
        totals = np.bincount(which, self.planned.sizes_bytes[numbers]).astype(np.int64)
        return dict(zip(owners.tolist(), totals.tolist(), strict=True))


def check_rows(batch: RowBatch, sums: Sequence[CheckedFile]) -> tuple[Bool, dict[int, ReadError]]:
    """Returns which rows of a batch were read undamaged, (n,) bool, and errors by pair.

    The errors are of the reads that failed, and of pages with a wrong checksum. `sums`: the side
    files, by segment.
    """
    bad_pages = _bad_pages(batch, sums)
    if not bad_pages:
        return np.ones(len(batch.rows), bool), {}
    pages, places = batch.planned.pages, batch.places
    first = np.searchsorted(pages, places.first_pages)
    last = np.searchsorted(pages, places.last_pages)
    is_good = np.ones(len(batch.rows), bool)
    errors: dict[int, ReadError] = {}
    for page, error in bad_pages.items():
        for pair in np.flatnonzero((first <= page) & (page <= last)).tolist():
            is_good[pair] = False
            errors.setdefault(pair, error)
    return is_good, errors


def _bad_pages(batch: RowBatch, sums: Sequence[CheckedFile]) -> dict[int, ReadError]:
    """The error of each page that was not read, or has a wrong checksum, by position."""
    planned, reads = batch.planned, batch.reads
    page_count = len(planned.pages)
    counts = np.diff(np.append(planned.first_of, page_count))
    of_page = np.repeat(np.arange(len(counts)), counts)
    bad: dict[int, ReadError] = {}
    for position, error in reads.errors.items():
        first = int(planned.first_of[position])
        bad.update(dict.fromkeys(range(first, first + int(counts[position])), error))
    was_read = np.ones(page_count, bool)
    was_read[list(bad)] = False
    files = planned.files[of_page]
    in_read = np.arange(page_count) - planned.first_of[of_page]
    numbers = planned.offsets_bytes[of_page] // PAGE_BYTES + in_read
    pages = np.frombuffer(reads.buffer, np.uint8).reshape(-1, PAGE_BYTES)
    for file in np.flatnonzero(np.bincount(files)).tolist():
        here = np.flatnonzero((files == file) & was_read)
        correct = sums[file].are_correct(pages[here], numbers[here])
        for position in here[~correct].tolist():
            bad[position] = sums[file].damaged(int(numbers[position]))
    return bad


def vectors_of(batch: RowBatch, layout: PageLayout, wanted: Bool) -> Float32:
    """Returns the vectors of pairs: (m, dim) float32, of those with `wanted`, (n,) bool; copies."""
    first = np.searchsorted(batch.planned.pages, batch.places.first_pages[wanted])
    starts = first * PAGE_BYTES + batch.places.starts[wanted] % PAGE_BYTES
    dtype = np.dtype("<f4" if layout.vector_dtype == "float32" else "<f2")
    numbers = np.frombuffer(batch.reads.buffer, dtype)
    # A view of a row at every number, of which few are taken.
    every = np.lib.stride_tricks.as_strided(
        numbers,
        (len(numbers) - layout.dimension + 1, layout.dimension),
        (dtype.itemsize, dtype.itemsize),
        writeable=False,
    )
    vectors: Float32 = every[starts // dtype.itemsize].astype(np.float32, copy=False)
    return vectors
