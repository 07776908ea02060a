"""Reads the codes of all clusters into memory, past the page cache, and verifies them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import structlog

from carpool.codes.faiss_codes import CodeScanner
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.index import OpenCodes
from carpool.errors import CorruptionError
from schemas.record import ClusterId
from searcher.codes.source import ScanPart
from searcher.store.files import SegmentFiles

_log = structlog.get_logger(__name__)

BUFFER_BYTES = 4 << 20
"""Codes read at a time; a cluster with more is read by itself."""


class ResidentCodes:
    """Implements `CodeSource`: the codes of all clusters are in memory."""

    times_out_at_us = None

    def __init__(
        self,
        codec: str,
        scanner: CodeScanner,
        first_rows: npt.NDArray[np.int64],
        row_counts: npt.NDArray[np.int64],
        broken: Mapping[ClusterId, CorruptionError],
    ) -> None:
        """`broken`: the error of each cluster whose codes are damaged."""
        self.codec = codec
        self.scanner = scanner
        self.first_rows, self.row_counts = first_rows, row_counts
        self._broken = broken
        self._parts: list[ScanPart] = []

    def is_in_memory(self, cluster: ClusterId) -> bool:
        """True; see `CodeSource`."""
        return True

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """Does nothing; see `CodeSource`."""

    def want(self, key: int, clusters: Sequence[ClusterId]) -> None:
        """See `CodeSource`."""
        errors = {one: self._broken[one] for one in clusters if one in self._broken}
        left = tuple(one for one in clusters if one not in errors) if errors else tuple(clusters)
        self._parts.append(ScanPart(key=key, clusters=left, errors=errors))

    def drop(self, key: int) -> None:
        """See `CodeSource`."""
        self._parts = [part for part in self._parts if part.key != key]

    def advance(self) -> list[ScanPart]:
        """Returns what was wanted; see `CodeSource`."""
        parts, self._parts = self._parts, []
        return parts

    def end(self, clusters: Sequence[ClusterId]) -> None:
        """Does nothing; see `CodeSource`."""

    def check_integrity(self) -> None:
        """Does nothing; see `CodeSource`."""


def load_codes(
    codes: OpenCodes,
    centroids: npt.NDArray[np.float32],
    *,
    direct_io: Literal["require", "auto"],
) -> ResidentCodes:
    """Returns the codes of every cluster, in memory. Blocks.

    Memory beside the codes: `BUFFER_BYTES`. A cluster with damaged codes stays empty; its error is
    logged. Raises `ConfigError` where O_DIRECT is required and refused.
    """
    scanner = CodeScanner(
        codes.layout, centroids, codes.rotation, codes.first_rows, codes.row_counts
    )
    broken: dict[ClusterId, CorruptionError] = {}
    by_segment: dict[int, list[int]] = {}
    for cluster, extent in enumerate(codes.extents):
        by_segment.setdefault(extent.segment, []).append(cluster)
    files = SegmentFiles([file.path for file in codes.files], direct_io)
    try:
        for clusters in by_segment.values():
            for together in _runs(codes, clusters):
                _load(codes, scanner, files, together, broken)
    finally:
        files.close()
    for cluster, error in broken.items():
        _log.error("codes of a cluster are damaged", cluster=cluster, error=str(error))
    return ResidentCodes(codes.layout.codec, scanner, codes.first_rows, codes.row_counts, broken)


def _runs(codes: OpenCodes, clusters: list[int]) -> list[list[int]]:
    """Neighbouring clusters whose codes fit the buffer together."""
    runs: list[list[int]] = []
    room_bytes = 0
    for cluster in clusters:
        size_bytes = codes.extents[cluster].read_bytes
        if not runs or size_bytes > room_bytes:
            runs.append([])
            room_bytes = BUFFER_BYTES
        runs[-1].append(cluster)
        room_bytes -= size_bytes
    return runs


def _load(
    codes: OpenCodes,
    scanner: CodeScanner,
    files: SegmentFiles,
    clusters: list[int],
    broken: dict[ClusterId, CorruptionError],
) -> None:
    first_bytes = codes.extents[clusters[0]].offset_bytes
    size_bytes = sum(codes.extents[cluster].read_bytes for cluster in clusters)
    if not size_bytes:
        return
    segment = codes.extents[clusters[0]].segment
    file = codes.files[segment]
    buffer = mmap.mmap(-1, size_bytes)
    try:
        count = files.fill(segment, memoryview(buffer), first_bytes)
    except OSError as error:
        _log.error("codes cannot be read", error=str(error), path=files.path(segment))
        count = 0
    content = np.frombuffer(buffer, np.uint8)
    for cluster in clusters:
        extent = codes.extents[cluster]
        start = extent.offset_bytes - first_bytes
        pages = content[start : start + extent.read_bytes].reshape(-1, PAGE_BYTES)
        wrong = file.first_damaged(pages, extent.offset_bytes // PAGE_BYTES)
        if start + extent.read_bytes > count and wrong is None:
            wrong = count // PAGE_BYTES
        if wrong is not None:
            broken[ClusterId(cluster)] = file.damaged(wrong)
        else:
            scanner.load(cluster, content[start : start + extent.size_bytes])
