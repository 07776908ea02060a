"""The segment: the clusters' rows in 4 KiB-aligned extents, and the table that says where each lies.

An extent holds vectors (n, dim) float32, zeros up to a multiple of 8 bytes, row numbers (n,) int64, zeros up to a multiple
of 4 KiB. Of a row number 40 bits are used; the 24 above are zero in v0 and kept for tenant and tombstone. An empty cluster
has one page of zeros, so that readers have no special case.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.disk.files import read_checked, write_atomically
from carpool.disk.manifest import Manifest
from carpool.disk.pages import ClusterRows as ClusterRows
from carpool.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT_NAME = "clusters.seg"
EXTENTS_NAME = "clusters.ext"
PAGE_BYTES = 4096
ROW_BITS = 40

_EXTENT = struct.Struct("<IIQQII")  # cluster, row_count, offset_bytes, size_bytes, crc32, zero
_SEAL = struct.Struct("<II")  # cluster, row_count


class ClusterExtent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cluster lies in the segment: read `size_bytes` (a multiple of 4096) at `offset_bytes` (likewise)."""

    cluster: int
    offset_bytes: int
    size_bytes: int
    row_count: int
    crc32: int


def extent_size_bytes(row_count: int, dimension: int) -> int:
    """Returns what a cluster of `row_count` rows takes in the segment: a multiple of 4096, at least one page."""
    return max(PAGE_BYTES, _round_up(_rows_offset_bytes(row_count, dimension) + row_count * 8, PAGE_BYTES))


def encode_cluster(vectors: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> bytes:
    """Returns the extent of a cluster. `vectors`: (n, dim) float32; `rows`: (n,) int64 in [0, 2**40); n may be 0."""
    count, dimension = vectors.shape
    if rows.shape != (count,):
        raise ValueError(f"{rows.shape} row numbers for {count} vectors")
    if count and not (int(rows.min()) >= 0 and int(rows.max()) < 1 << ROW_BITS):
        raise ValueError(f"row numbers must be in [0, 2**{ROW_BITS})")
    extent = np.zeros(extent_size_bytes(count, dimension), dtype=np.uint8)
    extent[: count * dimension * 4].view("<f4")[:] = vectors.reshape(-1)
    start = _rows_offset_bytes(count, dimension)
    extent[start : start + count * 8].view("<i8")[:] = rows
    return extent.tobytes()


def extent_crc32(cluster: int, row_count: int, content: Buffer) -> int:
    """Returns the checksum of an extent: over cluster number, row count, and every byte that is read, padding included."""
    return zlib.crc32(content, zlib.crc32(_SEAL.pack(cluster, row_count)))


def decode_cluster(buffer: Buffer, extent: ClusterExtent, dimension: int, *, path: str = SEGMENT_NAME) -> ClusterRows:
    """Returns the rows of a cluster as read-only views into `buffer`, without copying; the caller keeps the buffer.

    Only the first `extent.size_bytes` bytes are looked at. Raises `CorruptionError` naming `path` and byte unless every one
    of them is as it was written for this cluster.
    """
    content = memoryview(buffer).cast("B")[: extent.size_bytes]
    if len(content) != extent.size_bytes or extent.size_bytes != extent_size_bytes(extent.row_count, dimension):
        raise CorruptionError(
            f"{path}: cluster {extent.cluster} at byte {extent.offset_bytes} came as {len(content)} bytes; "
            f"{extent.row_count} rows of dimension {dimension} take {extent_size_bytes(extent.row_count, dimension)}. "
            "Run `carpool index verify`, then restore or rebuild the index",
            path=path,
            offset_bytes=extent.offset_bytes,
        )
    if extent_crc32(extent.cluster, extent.row_count, content) != extent.crc32:
        raise CorruptionError(
            f"{path}: cluster {extent.cluster} at byte {extent.offset_bytes} is damaged (its checksum does not match); it is "
            "skipped, never scored. Run `carpool index verify`, then restore or rebuild the index",
            path=path,
            offset_bytes=extent.offset_bytes,
        )
    count = extent.row_count
    vectors = np.frombuffer(content, dtype="<f4", count=count * dimension).reshape(count, dimension)
    rows = np.frombuffer(content, dtype="<i8", count=count, offset=_rows_offset_bytes(count, dimension) if count else 0)
    vectors.flags.writeable = False
    rows.flags.writeable = False
    return ClusterRows(extent.cluster, vectors, rows)


def write_extents(index_dir: Path, extents: Sequence[ClusterExtent]) -> None:
    """Writes the table of extents, in the order of the clusters. Atomic, durable."""
    packed = (_EXTENT.pack(e.cluster, e.row_count, e.offset_bytes, e.size_bytes, e.crc32, 0) for e in extents)
    write_atomically(index_dir / EXTENTS_NAME, b"".join(packed))


def read_extents(index_dir: Path, manifest: Manifest) -> tuple[ClusterExtent, ...]:
    """Returns the extent of each cluster, indexed by cluster. Raises `CorruptionError` where the table is damaged or wrong."""
    entry = manifest.file(EXTENTS_NAME)
    path = index_dir / EXTENTS_NAME
    content = read_checked(path, size_bytes=entry.size_bytes, crc32=entry.crc32)
    if len(content) != manifest.nlist * _EXTENT.size:
        raise _wrong(path, len(content), f"it has {len(content)} bytes for {manifest.nlist} clusters")
    extents = []
    end_bytes = row_count = 0
    for number, (cluster, rows, offset, size, crc32, zero) in enumerate(_EXTENT.iter_unpack(content)):
        # Clusters lie one behind the other without gaps: anything else was not written by us.
        if (cluster, offset, size, zero) != (number, end_bytes, extent_size_bytes(rows, manifest.dimension), 0):
            raise _wrong(path, number * _EXTENT.size, f"the entry of cluster {number} does not fit the ones before it")
        extents.append(
            ClusterExtent(cluster=cluster, offset_bytes=offset, size_bytes=size, row_count=rows, crc32=crc32)
        )
        end_bytes += size
        row_count += rows
    if row_count != manifest.row_count or end_bytes != manifest.file(SEGMENT_NAME).size_bytes:
        raise _wrong(
            path, 0, f"its clusters hold {row_count} rows in {end_bytes} bytes, which is not what the manifest says"
        )
    return tuple(extents)


def _wrong(path: Path, offset_bytes: int, why: str) -> CorruptionError:
    return CorruptionError(
        f"{path} is wrong: {why}; restore the index or rebuild it", path=str(path), offset_bytes=offset_bytes
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _rows_offset_bytes(row_count: int, dimension: int) -> int:
    return _round_up(row_count * dimension * 4, 8)
