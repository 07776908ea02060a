"""Opens the reader of passages: files, buffers and reads of their own."""

from __future__ import annotations

from pathlib import Path

from carpool.clock import Clock
from carpool.disk.documents import DocumentTable
from carpool.telemetry.metrics import Metrics
from searcher.passages.passage_reader import PassageReader
from searcher.passages.range_reader import RangeReader
from searcher.settings import SearcherSettings
from searcher.store.buffers import PAGE_BYTES, ReadBuffers
from searcher.store.files import SegmentFiles
from searcher.store.kernel_page_reads import open_page_reads
from searcher.store.reads_in_flight import ReadLimits
from searcher.store.waker import Waker

SLOTS = 4
SLOT_PAGES = 64
PASSAGE_BUFFERS_BYTES = SLOTS * SLOT_PAGES * PAGE_BYTES
"""What passages take of `budget_bytes`."""


def open_passages(
    table: DocumentTable, settings: SearcherSettings, metrics: Metrics, clock: Clock
) -> PassageReader:
    """Returns the reader of the documents of `table`. Blocks. Raises `ConfigError`."""
    paths = (Path(table.offsets_path), Path(table.documents_path))
    files = SegmentFiles(paths, settings.direct_io)
    waker = Waker()
    reads = open_page_reads(files, waker, clock)
    ranges = RangeReader(
        reads=reads,
        waker=waker,
        buffers=ReadBuffers(SLOTS, SLOT_PAGES),
        limits=ReadLimits(timeout_us=settings.read_timeout_ms * 1_000),
        metrics=metrics,
        clock=clock,
    )
    return PassageReader(table, ranges, reads, files, waker)
