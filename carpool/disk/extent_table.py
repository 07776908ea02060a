"""The file that says where each cluster is stored, read and written."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from carpool.disk.extents import HEADER_BYTES, ClusterExtent, segment_name
from carpool.disk.files import read_checked, write_atomically
from carpool.disk.manifest import Manifest
from carpool.disk.pages import ROW_BITS
from carpool.errors import CorruptionError

EXTENTS_NAME = "clusters.ext"
_EXTENT = struct.Struct("<IIQII")  # cluster, segment, offset_bytes, row_count, page_count


def write_extents(index_dir: Path, extents: Sequence[ClusterExtent]) -> None:
    """Writes the table of extents, in the order of the clusters. Atomic, durable."""
    packed = (
        _EXTENT.pack(e.cluster, e.segment, e.offset_bytes, e.row_count, e.page_count)
        for e in extents
    )
    write_atomically(index_dir / EXTENTS_NAME, b"".join(packed))


def read_extents(index_dir: Path, manifest: Manifest) -> tuple[ClusterExtent, ...]:
    """Returns the extents, indexed by cluster. Raises `CorruptionError`."""
    layout = manifest.layout()
    entry = manifest.file(EXTENTS_NAME)
    path = index_dir / EXTENTS_NAME
    content = read_checked(path, size_bytes=entry.size_bytes, crc32=entry.crc32)
    if len(content) != manifest.nlist * _EXTENT.size:
        raise _wrong(
            path, len(content), f"it has {len(content)} bytes for {manifest.nlist} clusters"
        )
    extents = []
    segment, end_bytes, row_count = 0, HEADER_BYTES, 0
    for number, (cluster, of_segment, offset, rows, page_count) in enumerate(
        _EXTENT.iter_unpack(content)
    ):
        if of_segment == segment + 1 and number:
            _check_segment(path, manifest, segment, end_bytes)
            segment, end_bytes = of_segment, HEADER_BYTES
        # Clusters are stored in order without gaps; nothing else is valid.
        if (cluster, of_segment, offset, page_count) != (
            number,
            segment,
            end_bytes,
            layout.page_count(rows),
        ):
            raise _wrong(
                path,
                number * _EXTENT.size,
                f"the entry of cluster {number} does not fit the ones before it",
            )
        size_bytes = page_count * layout.page_bytes
        extents.append(
            ClusterExtent(
                cluster=cluster,
                segment=segment,
                offset_bytes=offset,
                size_bytes=size_bytes,
                page_count=page_count,
                row_count=rows,
            )
        )
        end_bytes += size_bytes
        row_count += rows
    _check_segment(path, manifest, segment, end_bytes)
    if (row_count, segment + 1) != (
        manifest.row_count,
        manifest.segment_count,
    ) or row_count > 1 << ROW_BITS:
        raise _wrong(
            path,
            0,
            f"its clusters have {row_count} rows in {segment + 1} segments, which is not what the "
            "manifest says",
        )
    return tuple(extents)


def _check_segment(path: Path, manifest: Manifest, segment: int, size_bytes: int) -> None:
    listed_bytes = manifest.file(segment_name(segment)).size_bytes
    if listed_bytes != size_bytes:
        why = (
            f"it fills {segment_name(segment)} to {size_bytes} bytes, and the manifest lists "
            f"{listed_bytes}"
        )
        raise _wrong(path, 0, why)


def _wrong(path: Path, offset_bytes: int, why: str) -> CorruptionError:
    return CorruptionError(
        f"{path} is wrong: {why}; restore the index or rebuild it",
        path=str(path),
        offset_bytes=offset_bytes,
    )
