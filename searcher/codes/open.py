"""Opens the parts that search with codes: codes, buffers, reads, executor.

Codes that fit `budget_bytes` are all in memory. Else they are paged: what is left of the budget is
for the clusters that are needed next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from carpool.clock import Clock
from carpool.codes.int4 import CodeScanner
from carpool.codes.kernel import kernel_in_use, library
from carpool.disk.checked_file import PAGE_BYTES, CheckedFile
from carpool.disk.index import OpenCodes, OpenIndex
from carpool.telemetry.metrics import Metrics
from searcher.codes.coded_rows import CodedRows
from searcher.codes.codes_reader import CodesReader
from searcher.codes.executor import CodesExecutor
from searcher.codes.load import load_codes
from searcher.codes.paged import PagedCodes
from searcher.codes.source import CodeSource
from searcher.fresh.scans import FreshScans
from searcher.plan.paged_codes import PagedCodesPlanner
from searcher.plan.row_pages import segment_first_pages
from searcher.row_source import RowSource
from searcher.rows.row_reader import RowReader
from searcher.settings import SearcherSettings
from searcher.shard.hot_shard import HotShard
from searcher.shard.scans import ShardScans
from searcher.store.arena import Arena
from searcher.store.reader import OpenReads, Reader, close_all
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)

SLOTS = 4
SLOT_PAGES = 256
"""Pages of a buffer: 10 rows for each of 20 queries."""
BUFFERS_BYTES = SLOTS * SLOT_PAGES * PAGE_BYTES
CLUSTERS_MIN = 4
"""Paged codes need room for so many clusters of the largest size. With less, searches are exact."""


@dataclass(frozen=True, kw_only=True)
class ChosenCodes:
    """The codes that are searched. `paged_bytes`: memory of paged codes, None where all fit."""

    codes: OpenCodes
    paged_bytes: int | None = None

    @property
    def memory_bytes(self) -> int:
        """What codes and buffers take."""
        if self.paged_bytes is None:
            return _resident_bytes(self.codes)
        return self.paged_bytes + _paged_buffers_bytes(self.codes)


@dataclass(frozen=True, kw_only=True)
class CodesPlane:
    """Implements `SearchPlane`: codes are scanned, few rows are read."""

    executor: CodesExecutor
    shard: HotShard | None
    readers: tuple[Reader[Any], ...]
    waker: Waker

    def close(self) -> None:
        """Ends reads and threads."""
        if self.shard is not None:
            self.shard.close()
        close_all(self.readers, self.waker)


def _resident_bytes(codes: OpenCodes) -> int:
    return codes.size_bytes + BUFFERS_BYTES


def _paged_buffers_bytes(codes: OpenCodes) -> int:
    """Memory of paged codes that is not for codes: reads."""
    return BUFFERS_BYTES + SLOTS * _slot_pages(codes) * PAGE_BYTES


def _slot_pages(codes: OpenCodes) -> int:
    """Pages of a buffer for codes: one cluster fits, and several small ones."""
    return max(SLOT_PAGES, *(extent.read_bytes // PAGE_BYTES for extent in codes.extents))


def _paged_bytes_min(codes: OpenCodes) -> int:
    return CLUSTERS_MIN * max(extent.size_bytes for extent in codes.extents)


def choose_codes(index: OpenIndex, budget_bytes: int) -> ChosenCodes | None:
    """Returns the codes, all in memory where they fit `budget_bytes`, else paged.

    None where there are none, or not even that is possible. Raises `CorruptionError` where
    checksums of codes are damaged, and `ConfigError` for codes of another version.
    """
    codes = index.open_codes()
    if codes is None:
        return None
    if _resident_bytes(codes) <= budget_bytes:
        return ChosenCodes(codes=codes)
    paged_bytes = budget_bytes - _paged_buffers_bytes(codes)
    if paged_bytes < _paged_bytes_min(codes):
        return None
    return ChosenCodes(codes=codes, paged_bytes=paged_bytes)


def log_choice(index: OpenIndex, chosen: ChosenCodes | None, budget_bytes: int) -> None:
    """Warns where not all codes of `index` fit `budget_bytes`. `chosen`: what was chosen for it."""
    if chosen is not None and chosen.paged_bytes is None:
        return
    codes = index.open_codes()
    assert codes is not None
    event = "not all codes fit the budget: searches read the codes that are not in memory"
    if chosen is None:
        event = "codes do not fit the budget: every search is exact, and reads whole clusters"
    _log.warning(
        event,
        all_codes_bytes=_resident_bytes(codes),
        least_bytes=_paged_buffers_bytes(codes) + _paged_bytes_min(codes),
        budget_bytes=budget_bytes,
    )


def open_codes_plane(
    index: OpenIndex,
    chosen: ChosenCodes,
    settings: SearcherSettings,
    metrics: Metrics,
    clock: Clock,
    open_shard: Callable[[CodeSource], HotShard | None] = lambda codes: None,
    *,
    open_reads: OpenReads | None = None,
) -> CodesPlane:
    """Returns the plane; loads the codes that are to be in memory. Blocks. Raises `ConfigError`.

    `open_reads` is for tests: of rows, and of paged codes.
    """
    _say_if_slow()
    waker, readers = Waker(), list[Reader[Any]]()

    def reader_of(files: Sequence[CheckedFile], slot_pages: int) -> Reader[Any]:
        memory = Arena(SLOTS * slot_pages * PAGE_BYTES, slot_pages * PAGE_BYTES)
        paths = [file.path for file in files]
        readers.append(
            Reader(paths, memory, settings, waker, clock, sums=files, open_reads=open_reads)
        )
        return readers[-1]

    try:
        first_pages = segment_first_pages([path.stat().st_size for path in index.segment_paths])
        reader = reader_of(index.row_sums, SLOT_PAGES)
        rows = RowReader(index.layout, first_pages, chosen.codes.first_rows, reader)
        codes: CodeSource
        if chosen.paged_bytes is None:
            codes = load_codes(chosen.codes, index.scan_centroids, settings)
        else:
            reader = reader_of(chosen.codes.files, _slot_pages(chosen.codes))
            codes_reader = CodesReader(chosen.codes, reader)
            codes = _paged(
                index, chosen.codes, chosen.paged_bytes, codes_reader, metrics, settings.threads
            )
        shard = open_shard(codes)
    except BaseException:
        close_all(readers, waker)
        raise
    sources: list[RowSource] = [CodedRows(codes, clock)]
    if shard is not None:
        sources.insert(0, ShardScans(shard, waker, clock))
    fresh = FreshScans(clock)
    executor = CodesExecutor(
        sources=sources, fresh=fresh, rows=rows, waker=waker, metrics=metrics, clock=clock
    )
    return CodesPlane(executor=executor, shard=shard, readers=tuple(readers), waker=waker)


def _say_if_slow() -> None:
    if library() is None:
        _log.warning(
            "codes are scanned by NumPy",
            kernel=kernel_in_use(),
            means="fewer questions a second are searched",
            remedy="remove the reason, and then install carpool again",
        )


def _paged(
    index: OpenIndex,
    codes: OpenCodes,
    budget_bytes: int,
    reader: CodesReader,
    metrics: Metrics,
    threads: int,
) -> PagedCodes:
    """Returns paged codes, none of them in memory."""
    scanner = CodeScanner(
        codes.layout,
        index.scan_centroids,
        codes.rotation,
        codes.first_rows,
        codes.row_counts,
        threads=threads,
        copies_bytes=budget_bytes,
    )
    planner = PagedCodesPlanner([extent.size_bytes for extent in codes.extents], budget_bytes)
    ahead_bytes = SLOT_PAGES * PAGE_BYTES
    return PagedCodes(codes, scanner, planner, reader, metrics, read_ahead_bytes=ahead_bytes)
