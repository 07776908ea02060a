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
from searcher.store.file_reads import FileReads, OpenReads
from searcher.store.waker import Waker

SLOTS = 4
SLOT_PAGES = 64
PASSAGE_BUFFERS_BYTES = SLOTS * SLOT_PAGES * PAGE_BYTES
"""What passages take of `budget_bytes`."""


def open_passages(
    table: DocumentTable,
    settings: SearcherSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
) -> PassageReader:
    """Returns the reader of the documents of `table`. Blocks. Raises `ConfigError`.

    `open_reads` is for tests.
    """
    paths = (Path(table.offsets_path), Path(table.documents_path))
    waker = Waker()
    files = FileReads(paths, settings.direct_io, waker, clock, open_reads=open_reads)
    ranges = RangeReader(
        reads=files.reads,
        waker=waker,
        buffers=ReadBuffers(SLOTS, SLOT_PAGES),
        timeout_us=settings.read_timeout_ms * 1_000,
        metrics=metrics,
        clock=clock,
    )
    return PassageReader(table, ranges, files, waker)
