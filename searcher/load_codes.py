"""Reads the codes of all clusters into memory, past the page cache, and verifies them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import structlog

from carpool.codes.faiss_codes import CodeScanner
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.disk.files import open_regular
from carpool.disk.index import OpenCodes
from carpool.errors import ConfigError, CorruptionError
from searcher.store.files import forget_pages

_log = structlog.get_logger(__name__)

BUFFER_BYTES = 4 << 20
"""Codes read at a time; a cluster with more is read by itself."""


@dataclass(frozen=True, kw_only=True)
class LoadedCodes:
    """The codes in memory. `broken`: the error of each cluster whose codes are damaged.

    `first_rows`: (nlist,) int64, the number of the first row of each cluster.
    """

    codec: str
    scanner: CodeScanner
    first_rows: npt.NDArray[np.int64]
    broken: dict[int, CorruptionError]


def load_codes(
    codes: OpenCodes,
    centroids: npt.NDArray[np.float32],
    *,
    direct_io: Literal["require", "auto"],
    on_bytes: Callable[[int], None] = lambda _: None,
) -> LoadedCodes:
    """Returns the codes of every cluster, in memory. Blocks.

    Memory beside the codes: `BUFFER_BYTES`. A cluster with damaged codes stays empty; its error is
    logged. Raises `ConfigError` where O_DIRECT is required and refused.
    """
    scanner = CodeScanner(
        codes.layout, centroids, codes.rotation, codes.first_rows, codes.row_counts
    )
    broken: dict[int, CorruptionError] = {}
    by_segment: dict[int, list[int]] = {}
    for cluster, extent in enumerate(codes.extents):
        by_segment.setdefault(extent.segment, []).append(cluster)
    for segment, clusters in by_segment.items():
        file = codes.files[segment]
        descriptor, is_direct = _open(str(file.path), direct_io)
        try:
            for together in _runs(codes, clusters):
                _load(codes, scanner, descriptor, together, broken)
                on_bytes(sum(codes.extents[cluster].read_bytes for cluster in together))
            if not is_direct:
                forget_pages(descriptor)
        finally:
            os.close(descriptor)
    for cluster, error in broken.items():
        _log.error("codes of a cluster are damaged", cluster=cluster, error=str(error))
    return LoadedCodes(
        codec=codes.layout.codec, scanner=scanner, first_rows=codes.first_rows, broken=broken
    )


def _open(path: str, direct_io: Literal["require", "auto"]) -> tuple[int, bool]:
    try:
        return open_direct(path), True
    except NoDirectReadError as error:
        if direct_io == "require":
            raise ConfigError(
                f"{path} {error}, so that codes would fill the page cache, outside the budget. Put "
                'the index on a local disk (ext4, xfs), or set [searcher] direct_io = "auto"'
            ) from error
        return open_regular(path), False


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
    descriptor: int,
    clusters: list[int],
    broken: dict[int, CorruptionError],
) -> None:
    first_bytes = codes.extents[clusters[0]].offset_bytes
    size_bytes = sum(codes.extents[cluster].read_bytes for cluster in clusters)
    if not size_bytes:
        return
    file = codes.files[codes.extents[clusters[0]].segment]
    buffer = mmap.mmap(-1, size_bytes)
    count = _fill(descriptor, buffer, first_bytes)
    content = np.frombuffer(buffer, np.uint8)
    for cluster in clusters:
        extent = codes.extents[cluster]
        start = extent.offset_bytes - first_bytes
        pages = content[start : start + extent.read_bytes].reshape(-1, PAGE_BYTES)
        wrong = file.first_damaged(pages, extent.offset_bytes // PAGE_BYTES)
        if start + extent.read_bytes > count and wrong is None:
            wrong = count // PAGE_BYTES
        if wrong is not None:
            broken[cluster] = file.damaged(wrong)
        else:
            scanner.load(cluster, content[start : start + extent.size_bytes])


def _fill(descriptor: int, buffer: mmap.mmap, offset_bytes: int) -> int:
    """Reads until the buffer is full or the file ends; returns the bytes read."""
    view = memoryview(buffer)
    done_bytes = 0
    try:
        while done_bytes < len(view) and (
            count := os.preadv(descriptor, [view[done_bytes:]], offset_bytes + done_bytes)
        ):
            done_bytes += count
    except OSError as error:
        _log.error("codes cannot be read", error=str(error), byte=offset_bytes + done_bytes)
    finally:
        view.release()
    return done_bytes
