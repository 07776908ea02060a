"""Reads and writes segments: files of pages with checksums.

A segment begins with a header of 4 KiB. The extents of its clusters follow without gaps, each a
whole number of pages; a cluster is in one segment. The row counts determine every extent
(`plan_extents`), so a killed build continues with the next segment and writes the same bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import xxhash

from carpool.arrays import Float32, UInt8
from carpool.codes.int4 import Encoder
from carpool.disk.checked_file import PAGE_BYTES, CheckedFile, CheckedFileWriter, side_name
from carpool.disk.extents import (
    HEADER_BYTES,
    ClusterExtent,
    codes_name,
    padded,
    segment_name,
    segment_size_bytes,
)
from carpool.disk.files import damage, file_crc32, open_regular, read_exactly
from carpool.disk.manifest import FileEntry
from carpool.disk.pages import ClusterPages, PageLayout, encode_pages

_MAGIC = b"CARPOOL\0"
_HEADER = struct.Struct("<8sIIQIIIII")
# magic, format, segment, build_id, dimension, bytes a number, page_bytes, first cluster, cluster
# count
_HEADER_FORMAT = 2


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

    Next to each segment it writes a file with the codes of its clusters, if there is an `encoder`.
    A segment gets its name when it and its codes are complete and durable. A new writer with the
    same arguments finds such segments, and continues with `next_cluster`. Memory: one cluster. One
    thread.
    """

    def __init__(
        self,
        folder: Path,
        *,
        layout: PageLayout,
        build_id: int,
        extents: Sequence[ClusterExtent],
        encoder: Encoder | None = None,
    ) -> None:
        """Finds complete segments of an earlier run; those of another build are overwritten.

        `extents`: the result of `plan_extents`, at least one.
        """
        self._folder = folder
        self._layout = layout
        self._build_id = build_id
        self._extents = tuple(extents)
        self._encoder = encoder
        self._file: CheckedFileWriter | None = None
        self._codes: CheckedFileWriter | None = None
        self._entries: dict[str, FileEntry] = {}
        self.segment_count = self._extents[-1].segment + 1
        finished = 0
        while finished < self.segment_count and self._is_finished(finished):
            finished += 1
        self.next_cluster = sum(extent.segment < finished for extent in self._extents)

    @property
    def remaining(self) -> tuple[ClusterExtent, ...]:
        """The clusters that were not appended yet, in order."""
        return self._extents[self.next_cluster :]

    def append(self, cluster: int, vectors: Float32) -> ClusterExtent:
        """Writes the next cluster and returns its extent; durable with its segment. Blocks.

        `vectors`: (n, dim) float32. Raises `ValueError` for another cluster than `next_cluster`, or
        another n than planned.
        """
        extent = next(iter(self.remaining), None)
        if extent is None or extent.cluster != cluster or extent.row_count != len(vectors):
            raise ValueError(
                f"cluster {cluster} with {len(vectors)} rows is not what was planned next: {extent}"
            )
        if self._file is None:
            self._begin(extent.segment)
        assert self._file is not None
        self._file.append(encode_pages(self._layout, vectors).reshape(-1).data)
        if self._encoder is not None and self._codes is not None:
            self._codes.append(padded(self._encoder.encode(cluster, vectors)))
        self.next_cluster += 1
        if not self.remaining or self.remaining[0].segment != extent.segment:
            self._finish()
        return extent

    def close(self) -> dict[str, FileEntry]:
        """Returns the entry of every file, all durable; reads those of earlier runs. Blocks.

        Raises `ValueError` while clusters remain.
        """
        if self.remaining:
            raise ValueError(
                f"{len(self.remaining)} clusters are not written yet, the first is "
                f"{self.next_cluster}"
            )
        codecs = () if self._encoder is None else (self._encoder.layout.codec,)
        entries = {}
        for name in segment_files(self.segment_count, codecs):
            path = self._folder / name
            entries[name] = self._entries.get(name) or FileEntry(
                size_bytes=path.stat().st_size, crc32=file_crc32(path)
            )
        return entries

    def abandon(self) -> None:
        """Closes the unfinished segment, if any; finished ones stay for the next run."""
        for file in (self._file, self._codes):
            if file is not None:
                file.abandon()
        self._file = self._codes = None

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
        (self._folder / segment_name(segment)).unlink(missing_ok=True)  # of another build
        self._file = CheckedFileWriter(self._folder, segment_name(segment), self._build_id)
        self._file.append(self._header(segment))
        if self._encoder is not None:
            name = codes_name(self._encoder.layout.codec, segment)
            self._codes = CheckedFileWriter(self._folder, name, self._build_id)

    def _finish(self) -> None:
        for file in (self._codes, self._file):  # the segment last: it says that all are there
            if file is not None:
                self._entries |= file.close()
        self._file = self._codes = None


def segment_files(segment_count: int, codecs: Sequence[str]) -> tuple[str, ...]:
    """Returns the name of every file that a `SegmentWriter` writes."""
    return tuple(
        name
        for segment in range(segment_count)
        for data in (*(codes_name(codec, segment) for codec in codecs), segment_name(segment))
        for name in (data, side_name(data))
    )


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
    path: Path, layout: PageLayout, extents: Sequence[ClusterExtent], *, build_id: int, segment: int
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
    descriptor: int, extent: ClusterExtent, *, layout: PageLayout, path: str, sums: CheckedFile
) -> ClusterPages:
    """Returns a verified cluster in memory of its own, read through the page cache. For tools.

    Blocks. `descriptor` is of the extent's segment, `path` names it in errors, `sums` is its side
    file. Raises `CorruptionError`.
    """
    content = read_exactly(descriptor, extent.size_bytes, extent.offset_bytes, path)
    pages: UInt8 = np.frombuffer(content, dtype=np.uint8).reshape(
        extent.page_count, layout.page_bytes
    )
    verify_pages(pages, extent, path=path, sums=sums)
    return ClusterPages(extent.cluster, layout, extent.row_count, (pages,), extent.first_page)


def verify_pages(pages: UInt8, extent: ClusterExtent, *, path: str, sums: CheckedFile) -> None:
    """Raises `CorruptionError` unless every page is as it was written for `extent`.

    `pages`: (n, page_bytes) uint8, contiguous; `sums`: the side file of the segment. The error
    names file, cluster, page and byte.
    """
    wrong = sums.first_damaged(pages.reshape(-1).data, extent.offset_bytes // PAGE_BYTES)
    if wrong is None:
        return
    page_bytes = pages.shape[1]
    damaged = (wrong * PAGE_BYTES - extent.offset_bytes) // page_bytes
    page, offset_bytes = extent.first_page + damaged, extent.offset_bytes + damaged * page_bytes
    where = f"page {page} of cluster {extent.cluster} at byte {offset_bytes}"
    raise damage(path, f"is wrong: {where} is damaged or of another build", offset_bytes)
