"""The clusters of an index: their bytes on disk, and their rows. The documents stay closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from carpool.disk.index import OpenIndex, open_index
from carpool.disk.pages import ClusterRows, dense
from carpool.disk.segments import read_cluster


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


def vectors_bytes(index: OpenIndex) -> int:
    """Returns the bytes of the vectors without page headers."""
    return index.manifest.row_count * index.layout.row_bytes


def read_clusters(index: OpenIndex) -> Iterator[ClusterRows]:
    """Yields every cluster in ascending order, verified. Needs memory for one."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in index.segment_paths]
        for extent in index.extents:
            pages = read_cluster(
                files[extent.segment].fileno(),
                extent,
                layout=index.layout,
                path=str(index.segment_paths[extent.segment]),
                sums=index.row_sums[extent.segment],
            )
            yield dense(pages)
