"""Opens the reader of passages: files, buffers and reads of their own."""

from __future__ import annotations

from pathlib import Path

from carpool.clock import Clock
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.documents import DocumentTable
from carpool.telemetry.metrics import Metrics
from searcher.passages.passage_reader import PassageReader
from searcher.passages.range_reader import RangeReader, Reads
from searcher.settings import SearcherSettings
from searcher.store.arena import Arena
from searcher.store.reader import OpenReads, Reader
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
    reader = Reader[Reads](
        (Path(table.offsets_path), Path(table.documents_path)),
        Arena(PASSAGE_BUFFERS_BYTES, SLOT_PAGES * PAGE_BYTES),
        settings,
        Waker(),
        clock,
        open_reads=open_reads,
    )
    return PassageReader(table, RangeReader(reader, metrics, clock))
