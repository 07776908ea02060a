"""Opens the parts that search with codes: codes in memory, buffers, reads, executor."""

from __future__ import annotations

import os
from dataclasses import dataclass

import structlog

from carpool.clock import Clock
from carpool.disk.index import OpenCodes, OpenIndex
from carpool.telemetry.metrics import Metrics
from searcher.codes_executor import CodesExecutor
from searcher.load_codes import load_codes
from searcher.plan.row_pages import segment_first_pages
from searcher.rows.buffers import RowBuffers
from searcher.rows.row_reader import RowReader, RowRules
from searcher.settings import SearcherSettings
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.ring_page_reads import RingPageReads
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)

SLOTS = 4
SLOT_PAGES = 512
"""Pages of a buffer: 20 rows for each of 20 queries."""
BUFFERS_BYTES = SLOTS * SLOT_PAGES * 4096
READ_THREADS = 16
CLOSE_TIMEOUT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class CodesPlane:
    """Implements `SearchPlane`: codes are scanned, few rows are read."""

    executor: CodesExecutor
    reads: PageReads
    files: SegmentFiles
    waker: Waker

    def close(self) -> None:
        """Ends reads and threads."""
        if self.reads.close(CLOSE_TIMEOUT_S):
            self.files.close()
            self.waker.close()


def memory_bytes(codes: OpenCodes) -> int:
    """Returns what codes in memory and the buffers of rows take."""
    return codes.size_bytes + BUFFERS_BYTES


def choose_codes(index: OpenIndex, budget_bytes: int) -> OpenCodes | None:
    """Returns the most accurate codes that fit `budget_bytes`; None where none do.

    Raises `CorruptionError` where their checksums are damaged.
    """
    for layout in index.manifest.codes:
        codes = index.open_codes(layout.codec)
        if memory_bytes(codes) <= budget_bytes:
            return codes
        _log.warning(
            "codes do not fit the budget",
            codec=layout.codec,
            needed_bytes=memory_bytes(codes),
            budget_bytes=budget_bytes,
        )
    return None


def open_codes_plane(
    index: OpenIndex, codes: OpenCodes, settings: SearcherSettings, metrics: Metrics, clock: Clock
) -> CodesPlane:
    """Loads the codes and returns the plane. Blocks. Raises `ConfigError`."""
    files = SegmentFiles(index.segment_paths, settings.direct_io)
    try:
        loaded = load_codes(codes, index.centroids, direct_io=settings.direct_io)
        waker = Waker()
        reads = _open_reads(files, waker, settings, clock)
    except BaseException:
        files.close()
        raise
    rows = RowReader(
        layout=index.layout,
        sums=index.row_sums,
        segment_first_pages=segment_first_pages(
            [path.stat().st_size for path in index.segment_paths]
        ),
        reads=reads,
        buffers=RowBuffers(SLOTS, SLOT_PAGES),
        rules=RowRules(
            attempts=settings.read_attempts, timeout_us=settings.read_timeout_ms * 1_000
        ),
        clock=clock,
    )
    executor = CodesExecutor(
        codes=loaded,
        rows=rows,
        waker=waker,
        threads=settings.scoring_threads or len(os.sched_getaffinity(0)),
        metrics=metrics,
        clock=clock,
    )
    return CodesPlane(executor=executor, reads=reads, files=files, waker=waker)


def _open_reads(
    files: SegmentFiles, waker: Waker, settings: SearcherSettings, clock: Clock
) -> PageReads:
    if settings.engine != "threads":
        try:
            return RingPageReads(files, waker, clock)
        except OSError as error:
            _log.warning("no io_uring", error=str(error), means="threads read instead")
    return ThreadPageReads(files, waker, clock, READ_THREADS)
