"""Is every byte of an index as it was written? Reads all of it and lists what is not, without stopping at the first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.disk.centroids import centroids_fingerprint, read_centroids
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore
from carpool.disk.files import file_crc32, read_exactly
from carpool.disk.index import INDEX_FILES
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.segment import SEGMENT_NAME, ClusterExtent, ClusterRows, decode_cluster, read_extents
from carpool.errors import CarpoolError, CorruptionError
from indexer.progress import ProgressReport
from indexer.vectors import NORM_TOLERANCE

DOCUMENT_CHUNK_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What was read, and what is wrong with it, a sentence each; no problems: the index is whole."""

    problems: tuple[str, ...]
    cluster_count: int
    row_count: int
    size_bytes: int


def verify_index(index_dir: Path, progress: ProgressReport) -> VerifyReport:
    """Returns what is wrong with the index at `index_dir`. Reads everything, blocks.

    Raises `ConfigError` where there is no index of this format; damage is listed, not raised.
    """
    try:
        manifest = read_manifest(index_dir)
    except CorruptionError as error:
        return VerifyReport(problems=(str(error),), cluster_count=0, row_count=0, size_bytes=0)
    problems = _check_files(index_dir, manifest, progress)
    problems += _check_centroids(index_dir, manifest)
    problems += _check_clusters(index_dir, manifest, progress)
    problems += _check_documents(index_dir, manifest, progress)
    return VerifyReport(
        problems=tuple(dict.fromkeys(problems)),
        cluster_count=manifest.nlist,
        row_count=manifest.row_count,
        size_bytes=sum(entry.size_bytes for entry in manifest.files.values()),
    )


def _check_files(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    problems = []
    progress.start("files", len(INDEX_FILES))
    for name in INDEX_FILES:
        path, entry = index_dir / name, manifest.files.get(name)
        try:
            if entry is None:
                problems.append(f"the manifest does not list {name}")
            elif path.stat().st_size != entry.size_bytes:
                problems.append(f"{path} has {path.stat().st_size} bytes, not {entry.size_bytes}")
            elif file_crc32(path) != entry.crc32:
                problems.append(f"{path} is damaged: its checksum is not the manifest's")
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
        progress.advance(1)
    return problems


def _check_centroids(index_dir: Path, manifest: Manifest) -> list[str]:
    try:
        centroids = read_centroids(index_dir, manifest)
    except CarpoolError as error:
        return [str(error)]
    problems = []
    if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
        problems.append("the centroids' fingerprint is not the manifest's")
    if not np.isfinite(centroids).all():
        problems.append("a centroid is not finite")
    return problems


def _check_clusters(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    try:
        extents = read_extents(index_dir, manifest)
        file = (index_dir / SEGMENT_NAME).open("rb")
    except CarpoolError as error:
        return [str(error)]
    except OSError as error:
        return [f"{index_dir / SEGMENT_NAME} cannot be read: {error.strerror}"]
    problems = []
    seen = np.zeros(manifest.row_count, dtype=np.int64)
    progress.start("clusters", len(extents))
    with file:
        for extent in extents:
            try:
                cluster = _read_cluster(file.fileno(), extent, manifest, str(index_dir / SEGMENT_NAME))
                problems += _check_rows(cluster, seen)
            except CorruptionError as error:
                problems.append(str(error))
            progress.advance(1)
    if not problems and not (seen == 1).all():
        row = int(np.flatnonzero(seen != 1)[0])
        problems.append(
            f"{int((seen != 1).sum())} rows are not in exactly one cluster: row {row} is in {int(seen[row])}"
        )
    return problems


def _read_cluster(descriptor: int, extent: ClusterExtent, manifest: Manifest, path: str) -> ClusterRows:
    content = read_exactly(descriptor, extent.size_bytes, extent.offset_bytes, path)
    return decode_cluster(content, extent, manifest.dimension, path=path)


def _check_rows(cluster: ClusterRows, seen: npt.NDArray[np.int64]) -> list[str]:
    """Counts the rows of a cluster in `seen`; what is wrong with them."""
    problems = []
    if cluster.rows.size and not (int(cluster.rows.min()) >= 0 and int(cluster.rows.max()) < len(seen)):
        return [f"cluster {cluster.cluster} holds a row number that the index does not have ({len(seen)} rows)"]
    np.add.at(seen, cluster.rows, 1)
    if not (np.abs(np.linalg.norm(cluster.vectors, axis=1) - 1) <= NORM_TOLERANCE).all():
        problems.append(f"cluster {cluster.cluster} holds a vector that is not normalised")
    return problems


def _check_documents(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    try:
        store = DocumentStore.open(index_dir, manifest)
    except CarpoolError as error:
        return [str(error)]
    except OSError as error:
        return [f"{index_dir / DOCUMENTS_NAME} or {OFFSETS_NAME} cannot be read: {error.strerror}"]
    problems: list[str] = []
    progress.start("documents", manifest.row_count)
    with store:
        for start in range(0, manifest.row_count, DOCUMENT_CHUNK_ROWS):
            rows = range(start, min(start + DOCUMENT_CHUNK_ROWS, manifest.row_count))
            for row in rows:
                try:
                    store.get((row,))
                except CorruptionError as error:
                    problems.append(str(error))
            progress.advance(len(rows))
    return problems
