"""Reads and writes segments: files of pages with checksums.

A segment begins with a header of 4 KiB. The extents of its clusters follow without gaps, each a
whole number of pages; a cluster is in one segment. The row counts determine every extent
(`plan_extents`), so a killed build continues with the next segment and writes the same bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from carpool.disk.extents import HEADER_BYTES, ClusterExtent, segment_name, segment_size_bytes
from carpool.disk.files import damage, file_crc32, fsync_folder, open_regular, read_exactly
from carpool.disk.manifest import FileEntry
from carpool.disk.pages import (
    ClusterPages,
    PageLayout,
    UInt8,
    encode_pages,
    first_damaged_page,
    page_seed,
)

_MAGIC = b"CARPOOL\0"
_HEADER = struct.Struct("<8sIIQIIIII")
# magic, format, segment, build_id, dimension, bytes a number, page_bytes, first cluster, cluster
# count
_HEADER_FORMAT = 1


def build_id_of(*parts: bytes) -> int:
    """Returns 64 bits of everything that the bytes of a build depend on.

    It seeds every checksum, and only it distinguishes the files of two builds: two builds may have
    one build id only if their files are the same bytes.
    """
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest()[:8], "little")


class SegmentWriter:
    """Writes the segments of an index in the order of clusters; a killed build can continue.

    A segment gets its name when it is complete and durable. A new writer with the same arguments
    finds such segments, and continues with `next_cluster`. Memory: one cluster. One thread.
    """

    def __init__(
        self, folder: Path, *, layout: PageLayout, build_id: int, extents: Sequence[ClusterExtent]
    ) -> None:
        """Finds complete segments of an earlier run; those of another build are overwritten.

        `extents`: the result of `plan_extents`, at least one.
        """
        self._folder = folder
        self._layout = layout
        self._build_id = build_id
        self._extents = tuple(extents)
        self._file: BufferedWriter | None = None
        self._crc32 = 0
        self._crc32_of: dict[int, int] = {}
        self.segment_count = self._extents[-1].segment + 1
        finished = 0
        while finished < self.segment_count and self._is_finished(finished):
            finished += 1
        self.next_cluster = sum(extent.segment < finished for extent in self._extents)

    @property
    def remaining(self) -> tuple[ClusterExtent, ...]:
        """The clusters that were not appended yet, in order."""
        return self._extents[self.next_cluster :]

    def append(
        self, cluster: int, vectors: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]
    ) -> ClusterExtent:
        """Writes the next cluster and returns its extent; durable with its segment. Blocks.

        `vectors`: (n, dim) float32; `rows`: (n,) int64 in [0, 2**40). Raises `ValueError` for
        another cluster than `next_cluster`, or another n than planned.
        """
        extent = next(iter(self.remaining), None)
        if extent is None or extent.cluster != cluster or extent.row_count != len(vectors):
            raise ValueError(
                f"cluster {cluster} with {len(vectors)} rows is not what was planned next: {extent}"
            )
        seed = page_seed(build_id=self._build_id, segment=extent.segment, cluster=cluster)
        pages = encode_pages(self._layout, vectors, rows, seed=seed)
        if self._file is None:
            self._begin(extent.segment)
        self._write(pages.reshape(-1).data)
        self.next_cluster += 1
        if not self.remaining or self.remaining[0].segment != extent.segment:
            self._finish(extent.segment)
        return extent

    def close(self) -> dict[str, FileEntry]:
        """Returns the entry of every segment, all durable; reads those of earlier runs. Blocks.

        Raises `ValueError` while clusters remain.
        """
        if self.remaining:
            raise ValueError(
                f"{len(self.remaining)} clusters are not written yet, the first is "
                f"{self.next_cluster}"
            )
        entries = {}
        for segment in range(self.segment_count):
            path = self._folder / segment_name(segment)
            crc32 = self._crc32_of.get(segment)
            entries[path.name] = FileEntry(
                size_bytes=path.stat().st_size, crc32=file_crc32(path) if crc32 is None else crc32
            )
        return entries

    def abandon(self) -> None:
        """Closes the unfinished segment, if any; finished ones stay for the next run."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_finished(self, segment: int) -> bool:
        path = self._folder / segment_name(segment)
        try:
            with path.open("rb") as file:
                header = file.read(HEADER_BYTES)
                size_bytes = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return False
        return header == self._header(segment) and size_bytes == segment_size_bytes(
            self._extents, segment
        )

    def _header(self, segment: int) -> bytes:
        return encode_header(self._layout, self._extents, build_id=self._build_id, segment=segment)

    def _begin(self, segment: int) -> None:
        self._file = (self._folder / (segment_name(segment) + ".tmp")).open("wb")
        self._crc32 = 0
        self._write(self._header(segment))

    def _write(self, content: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.write(content)
        self._crc32 = zlib.crc32(content, self._crc32)

    def _finish(self, segment: int) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        path = self._folder / segment_name(segment)
        path.with_name(path.name + ".tmp").replace(path)
        fsync_folder(self._folder)
        self._crc32_of[segment] = self._crc32


def encode_header(
    layout: PageLayout, extents: Sequence[ClusterExtent], *, build_id: int, segment: int
) -> bytes:
    """Returns the first `HEADER_BYTES` of a segment: fields, zeros, checksum."""
    clusters = [extent.cluster for extent in extents if extent.segment == segment]
    content = _HEADER.pack(
        _MAGIC,
        _HEADER_FORMAT,
        segment,
        build_id,
        layout.dimension,
        layout.row_bytes // layout.dimension,
        layout.page_bytes,
        clusters[0],
        len(clusters),
    ).ljust(HEADER_BYTES - 8, b"\0")
    return content + xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")


def check_header(
    path: Path,
    layout: PageLayout,
    extents: Sequence[ClusterExtent],
    *,
    build_id: int,
    segment: int,
) -> None:
    """Raises `CorruptionError` unless `path` has the header of this segment. Blocks."""
    descriptor = open_regular(path)
    try:
        found = read_exactly(descriptor, HEADER_BYTES, 0, str(path))
    finally:
        os.close(descriptor)
    if found == encode_header(layout, extents, build_id=build_id, segment=segment):
        return
    is_whole = found[:8] == _MAGIC and xxhash.xxh3_64_digest(found[:-8])[::-1] == found[-8:]
    mixed = "its header is of another build or another segment: files of two indexes were mixed"
    raise damage(path, f"is wrong: {mixed if is_whole else 'its header is damaged'}", 0)


def read_cluster(
    descriptor: int, extent: ClusterExtent, *, layout: PageLayout, build_id: int, path: str
) -> ClusterPages:
    """Returns a verified cluster in memory of its own, read through the page cache. For tools.

    Blocks. `descriptor` is of the extent's segment, `path` names it in errors. Raises
    `CorruptionError`.
    """
    content = read_exactly(descriptor, extent.size_bytes, extent.offset_bytes, path)
    pages: UInt8 = np.frombuffer(content, dtype=np.uint8).reshape(
        extent.page_count, layout.page_bytes
    )
    verify_pages(pages, extent, build_id=build_id, path=path)
    return ClusterPages(extent.cluster, layout, extent.row_count, (pages,))


def verify_pages(
    pages: UInt8, extent: ClusterExtent, *, build_id: int, path: str, first_page: int = 0
) -> None:
    """Raises `CorruptionError` unless every page is as it was written for `extent`.

    `pages`: (n, page_bytes) uint8, contiguous, the pages of the extent from `first_page` on. The
    error names file, cluster, page and byte.
    """
    seed = page_seed(build_id=build_id, segment=extent.segment, cluster=extent.cluster)
    damaged = first_damaged_page(pages, seed=seed, first_page=extent.first_page + first_page)
    if damaged is None:
        return
    page = extent.first_page + first_page + damaged
    offset_bytes = extent.offset_bytes + (first_page + damaged) * pages.shape[1]
    where = f"page {page} of cluster {extent.cluster} at byte {offset_bytes}"
    raise damage(path, f"is wrong: {where} is damaged or of another build", offset_bytes)
