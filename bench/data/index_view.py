"""An index as benchmarks need it: sizes and places of clusters, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.data.evaluation import Float32
from bench.data.oracles import Int64
from carpool.disk.extents import ClusterExtent
from carpool.disk.index import open_index
from carpool.disk.manifest import Manifest
from carpool.disk.pages import ClusterRows, PageLayout, dense
from carpool.disk.segments import read_cluster


@dataclass(frozen=True, kw_only=True)
class IndexView:
    """An index. `cluster_bytes`: (nlist,) int64, the bytes of each cluster on disk."""

    dir: Path
    manifest: Manifest
    centroids: Float32
    cluster_bytes: Int64
    extents: tuple[ClusterExtent, ...]
    segment_paths: tuple[Path, ...]
    layout: PageLayout

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        return self.manifest.dimension

    @property
    def nlist(self) -> int:
        """Clusters."""
        return self.manifest.nlist

    @property
    def row_count(self) -> int:
        """Vectors."""
        return self.manifest.row_count

    @property
    def vectors_bytes(self) -> int:
        """Bytes of the vectors without page headers."""
        return self.row_count * self.layout.row_bytes

    @property
    def clusters_bytes(self) -> int:
        """Bytes of all clusters on disk."""
        return int(self.cluster_bytes.sum())

    def clusters(self) -> Iterator[ClusterRows]:
        """Yields every cluster in ascending order, verified. Needs memory for one."""
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self.segment_paths]
            for extent in self.extents:
                pages = read_cluster(
                    files[extent.segment].fileno(),
                    extent,
                    layout=self.layout,
                    build_id=self.manifest.build_id,
                    path=str(self.segment_paths[extent.segment]),
                )
                yield dense(pages)


def open_view(index_dir: Path) -> IndexView:
    """Returns the index at `index_dir`.

    Raises `ConfigError` where there is none, `CorruptionError` where it is damaged.
    """
    opened = open_index(index_dir)
    opened.close()  # the documents are not needed
    return IndexView(
        dir=index_dir,
        manifest=opened.manifest,
        centroids=opened.centroids,
        cluster_bytes=np.array([each.size_bytes for each in opened.extents], dtype=np.int64),
        extents=opened.extents,
        segment_paths=opened.segment_paths,
        layout=opened.layout,
    )
