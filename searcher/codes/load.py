"""Reads the codes of all clusters into memory, past the page cache, and verifies them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import structlog

from carpool.arrays import Float32, Int64
from carpool.codes.int4 import CodeScanner
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.index import OpenCodes
from carpool.errors import CorruptionError
from schemas.record import ClusterId
from searcher.codes.source import ScanPart
from searcher.settings import SearcherSettings
from searcher.store.files import SegmentFiles

_log = structlog.get_logger(__name__)


class ResidentCodes:
    """Implements `CodeSource`: the codes of all clusters are in memory."""

    times_out_at_us = None

    def __init__(
        self,
        scanner: CodeScanner,
        first_rows: Int64,
        row_counts: Int64,
        broken: Mapping[ClusterId, CorruptionError],
    ) -> None:
        """`broken`: the error of each cluster whose codes are damaged."""
        self.scanner = scanner
        self.first_rows, self.row_counts = first_rows, row_counts
        self._broken = broken
        self._parts: list[ScanPart] = []

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """Does nothing; see `CodeSource`."""

    def want(self, key: int, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """See `CodeSource`."""
        broken = self._broken and [one for one in clusters if one in self._broken]
        left = np.array([one for one in clusters if one not in broken] if broken else clusters)
        errors = [(key, one, self._broken[one]) for one in broken]
        self._parts.append(ScanPart(keys=np.full(len(left), key), clusters=left, errors=errors))
        return ()

    def drop(self, key: int) -> None:
        """Does nothing; see `CodeSource`."""

    def advance(self) -> list[ScanPart]:
        """Returns what was wanted; see `CodeSource`."""
        parts, self._parts = self._parts, []
        return parts

    def end(self, clusters: Int64) -> None:
        """Does nothing; see `CodeSource`."""

    def check_integrity(self) -> None:
        """Does nothing; see `CodeSource`."""


def load_codes(codes: OpenCodes, centroids: Float32, settings: SearcherSettings) -> ResidentCodes:
    """Returns the codes of every cluster, in memory. Blocks.

    A cluster with damaged codes stays empty; its error is logged. Raises `ConfigError` where
    O_DIRECT is required and refused.
    """
    scanner = CodeScanner(
        codes.layout,
        centroids,
        codes.rotation,
        codes.first_rows,
        codes.row_counts,
        threads=settings.threads,
    )
    broken: dict[ClusterId, CorruptionError] = {}
    files = SegmentFiles([file.path for file in codes.files], settings.direct_io)
    try:
        for segment in range(len(codes.files)):
            _load(codes, scanner, files, segment, broken)
    finally:
        files.close()
    for cluster, error in broken.items():
        _log.error("codes of a cluster are damaged", cluster=cluster, error=str(error))
    return ResidentCodes(scanner, codes.first_rows, codes.row_counts, broken)


def _load(
    codes: OpenCodes,
    scanner: CodeScanner,
    files: SegmentFiles,
    segment: int,
    broken: dict[ClusterId, CorruptionError],
) -> None:
    """Reads the codes of a segment into one piece of memory, where the scanner keeps them."""
    extents = [
        (cluster, one) for cluster, one in enumerate(codes.extents) if one.segment == segment
    ]
    size_bytes = sum(extent.read_bytes for _, extent in extents)
    if not size_bytes:
        return
    memory = mmap.mmap(-1, size_bytes)
    with suppress(OSError):  # a kernel may be built without them
        memory.madvise(mmap.MADV_HUGEPAGE)  # scans jump from cluster to cluster
    try:
        count = files.fill(segment, memoryview(memory), 0)
    except OSError as error:
        _log.error("codes cannot be read", error=str(error), path=files.path(segment))
        count = 0
    content, file = np.frombuffer(memory, np.uint8), codes.files[segment]
    for cluster, extent in extents:
        end = extent.offset_bytes + extent.read_bytes
        pages = content[extent.offset_bytes : end]
        wrong = file.first_damaged(pages.data, extent.offset_bytes // PAGE_BYTES)
        if end > count and wrong is None:
            wrong = count // PAGE_BYTES
        if wrong is not None:
            broken[ClusterId(cluster)] = file.damaged(wrong)
        else:
            scanner.load(cluster, content[extent.offset_bytes :][: extent.size_bytes])
