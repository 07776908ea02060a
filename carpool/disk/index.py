"""Opens an index: reads manifest, centroids and extents, and checks the sizes of all files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore
from carpool.disk.extent_table import EXTENTS_NAME, read_extents
from carpool.disk.extents import ClusterExtent, segment_name
from carpool.disk.files import check_size, damage
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.pages import PageLayout
from carpool.disk.segments import check_header


def index_files(segment_count: int) -> tuple[str, ...]:
    """Returns the name of every file of an index but the manifest."""
    segments = (segment_name(segment) for segment in range(segment_count))
    return (CENTROIDS_NAME, EXTENTS_NAME, *segments, DOCUMENTS_NAME, OFFSETS_NAME)


@dataclass(frozen=True, kw_only=True)
class OpenIndex:
    """An open index. `extents` are indexed by cluster, `segment_paths` by segment.

    The caller of `open_index` closes it.
    """

    dir: Path
    manifest: Manifest
    layout: PageLayout
    centroids: npt.NDArray[np.float32]
    extents: tuple[ClusterExtent, ...]
    segment_paths: tuple[Path, ...]
    documents: DocumentStore

    def close(self) -> None:
        """Closes the document store."""
        self.documents.close()


def open_index(index_dir: Path) -> OpenIndex:
    """Returns the index at `index_dir`. Verifies small files; of large ones, size and header.

    Blocks. Clusters and documents are verified when they are read. Raises `ConfigError` where there
    is no index of this format, `CorruptionError` where a file is missing, cut short or damaged.
    """
    manifest = read_manifest(index_dir)
    layout = manifest.layout()
    check_sizes(index_dir, manifest)
    centroids = read_centroids(index_dir, manifest)
    if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
        raise damage(index_dir / CENTROIDS_NAME, "has another fingerprint than the manifest says")
    extents = read_extents(index_dir, manifest)
    segment_paths = tuple(
        index_dir / segment_name(segment) for segment in range(manifest.segment_count)
    )
    for segment, segment_path in enumerate(segment_paths):
        check_header(segment_path, layout, extents, build_id=manifest.build_id, segment=segment)
    return OpenIndex(
        dir=index_dir,
        manifest=manifest,
        layout=layout,
        centroids=centroids,
        extents=extents,
        segment_paths=segment_paths,
        documents=DocumentStore.open(index_dir, manifest),
    )


def check_sizes(index_dir: Path, manifest: Manifest) -> None:
    """Raises `CorruptionError` for the first missing file or wrong size."""
    for name in index_files(manifest.segment_count):
        check_size(index_dir / name, manifest.file(name).size_bytes)
