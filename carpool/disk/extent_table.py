"""Reads and writes the table of extents, which says where each cluster is stored."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from carpool.disk.extents import HEADER_BYTES, ClusterExtent, extent_at, segment_name
from carpool.disk.files import damage, write_atomically
from carpool.disk.manifest import Manifest
from carpool.disk.pages import ROW_BITS

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
    layout, path = manifest.layout(), index_dir / EXTENTS_NAME
    content = manifest.read(index_dir, EXTENTS_NAME, manifest.cluster_count * _EXTENT.size)
    extents: list[ClusterExtent] = []
    segment, end_bytes, page_total = 0, HEADER_BYTES, 0
    for number, (cluster, of_segment, offset, rows, page_count) in enumerate(
        _EXTENT.iter_unpack(content)
    ):
        if of_segment == segment + 1 and number:
            _check_segment(path, manifest, segment, end_bytes)
            segment, end_bytes = of_segment, HEADER_BYTES
        extent = extent_at(layout, number, segment, end_bytes, rows, pages_before=page_total)
        # Clusters are stored in order without gaps; nothing else is valid.
        expected = (extent.cluster, extent.segment, extent.offset_bytes, extent.page_count)
        if (cluster, of_segment, offset, page_count) != expected:
            why = f"is wrong: the entry of cluster {number} does not fit the ones before it"
            raise damage(path, why, number * _EXTENT.size)
        extents.append(extent)
        end_bytes += extent.size_bytes
        page_total += extent.page_count
    _check_segment(path, manifest, segment, end_bytes)
    row_count = sum(extent.row_count for extent in extents)
    expected_counts = (manifest.row_count, manifest.segment_count)
    if (row_count, segment + 1) != expected_counts or row_count > 1 << ROW_BITS:
        why = f"is wrong: its clusters have {row_count} rows in {segment + 1} segments"
        raise damage(path, f"{why}, which is not what the manifest says", 0)
    return tuple(extents)


def _check_segment(path: Path, manifest: Manifest, segment: int, size_bytes: int) -> None:
    listed_bytes = manifest.file(segment_name(segment)).size_bytes
    if listed_bytes != size_bytes:
        why = f"is wrong: {segment_name(segment)} has {size_bytes} bytes by this table"
        raise damage(path, f"{why}, and {listed_bytes} bytes by the manifest", 0)
