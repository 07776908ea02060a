"""Opening an index: manifest, centroids, extents and documents together, with every size checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.segment import EXTENTS_NAME, SEGMENT_NAME, ClusterExtent, read_extents
from carpool.errors import CorruptionError

INDEX_FILES = (CENTROIDS_NAME, EXTENTS_NAME, SEGMENT_NAME, DOCUMENTS_NAME, OFFSETS_NAME)
"""Every file of a v0 index but the manifest."""


@dataclass(frozen=True, kw_only=True)
class OpenIndex:
    """An index that is ready to be read. Whoever opened it closes `documents`."""

    dir: Path
    manifest: Manifest
    centroids: npt.NDArray[np.float32]
    extents: tuple[ClusterExtent, ...]
    documents: DocumentStore
    segment_path: Path

    def close(self) -> None:
        """Closes the document store."""
        self.documents.close()


def open_index(index_dir: Path) -> OpenIndex:
    """Returns the index at `index_dir`: small files read and verified, large ones opened and their sizes checked. Blocks.

    Clusters and documents are verified when they are read. Raises `ConfigError` where there is no index of this format,
    `CorruptionError` where something is missing, cut short or damaged.
    """
    manifest = read_manifest(index_dir)
    check_sizes(index_dir, manifest)
    centroids = read_centroids(index_dir, manifest)
    if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
        path = str(index_dir / CENTROIDS_NAME)
        raise CorruptionError(f"{path} has another fingerprint than the manifest says; rebuild the index", path=path)
    return OpenIndex(
        dir=index_dir,
        manifest=manifest,
        centroids=centroids,
        extents=read_extents(index_dir, manifest),
        documents=DocumentStore.open(index_dir, manifest),
        segment_path=index_dir / SEGMENT_NAME,
    )


def check_sizes(index_dir: Path, manifest: Manifest) -> None:
    """Raises `CorruptionError` for the first file of the manifest that is missing or has another size."""
    for name in INDEX_FILES:
        path, expected_bytes = index_dir / name, manifest.file(name).size_bytes
        if not path.is_file():
            raise CorruptionError(f"{path} is missing; restore the index or rebuild it", path=str(path))
        if (size_bytes := path.stat().st_size) != expected_bytes:
            raise CorruptionError(
                f"{path} has {size_bytes} bytes, not {expected_bytes}; restore the index or rebuild it",
                path=str(path),
                offset_bytes=min(size_bytes, expected_bytes),
            )
