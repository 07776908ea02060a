"""The clusters of an index, and their bytes on disk. The documents stay closed."""

from __future__ import annotations

from pathlib import Path

from carpool.disk.index import OpenIndex, open_index


def open_clusters(index_dir: Path) -> OpenIndex:
    """Returns the index at `index_dir`, its documents closed.

    Raises `ConfigError` where there is none, `CorruptionError` where it is damaged.
    """
    index = open_index(index_dir)
    index.close()
    return index


def clusters_bytes(index: OpenIndex) -> int:
    """Returns the bytes of all clusters on disk."""
    return sum(extent.size_bytes for extent in index.extents)
