"""Writing what was decided: clusters into the segment, the tables, and the manifest that declares the index complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.disk.centroids import centroids_fingerprint, write_centroids
from carpool.disk.files import file_crc32
from carpool.disk.index import INDEX_FILES
from carpool.disk.manifest import FORMAT, FileEntry, Manifest, write_manifest
from carpool.disk.segment import SEGMENT_NAME, ClusterExtent, encode_cluster, extent_crc32, write_extents
from indexer.plan import BuildIdentity, default_nprobe
from indexer.profile import profile_reads
from indexer.vectors import Vectors


def write_clusters(
    folder: Path, vectors: Vectors, clusters: npt.NDArray[np.int64], nlist: int, on_cluster: Callable[[int], None]
) -> tuple[ClusterExtent, ...]:
    """Writes segment and extents, durably; rows of a cluster in the order of the corpus. Memory: one cluster. Blocks."""
    order = np.argsort(clusters, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(clusters, minlength=nlist))))
    extents = []
    offset_bytes = 0
    with (folder / SEGMENT_NAME).open("wb") as file:
        for cluster in range(nlist):
            rows = order[bounds[cluster] : bounds[cluster + 1]]
            content = encode_cluster(vectors.take(rows), rows)
            file.write(content)
            extents.append(
                ClusterExtent(
                    cluster=cluster,
                    offset_bytes=offset_bytes,
                    size_bytes=len(content),
                    row_count=len(rows),
                    crc32=extent_crc32(cluster, len(rows), content),
                )
            )
            offset_bytes += len(content)
            on_cluster(1)
        file.flush()
        os.fsync(file.fileno())
    write_extents(folder, extents)
    return tuple(extents)


def finish(
    folder: Path,
    *,
    identity: BuildIdentity,
    started_us: int,
    centroids: npt.NDArray[np.float32],
    extents: tuple[ClusterExtent, ...],
    profile_read_count: int,
    clock: Clock,
) -> Manifest:
    """Writes centroids, profiles the clusters, and writes the manifest last. Returns it. Blocks."""
    write_centroids(folder, centroids)
    files = {
        name: FileEntry(size_bytes=(folder / name).stat().st_size, crc32=file_crc32(folder / name))
        for name in INDEX_FILES
    }
    fingerprint = centroids_fingerprint(centroids)
    manifest = Manifest(
        format=FORMAT,
        index_version=index_version(started_us, files, identity.vectors.embedding_model, fingerprint),
        dimension=centroids.shape[1],
        metric="inner_product",
        nlist=len(centroids),
        codec="Flat",
        vector_dtype="float32",
        embedding_model=identity.vectors.embedding_model,
        embedding_model_name=identity.vectors.embedding_model_name,
        centroids_fingerprint=fingerprint,
        row_count=sum(extent.row_count for extent in extents),
        nprobe_default=default_nprobe(len(centroids)),
        read_latency_us=profile_reads(folder / SEGMENT_NAME, extents, reads=profile_read_count, clock=clock),
        files=files,
    )
    write_manifest(folder, manifest)
    return manifest


def index_version(started_us: int, files: dict[str, FileEntry], embedding_model: str, fingerprint: str) -> str:
    """Returns such as "2026-11-21T10:00Z-7f3a91c2": when the build began, and a hash of what the index holds."""
    digest = hashlib.sha256(f"{embedding_model}\0{fingerprint}".encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{files[name].size_bytes}\0{files[name].crc32}".encode())
    began = datetime.fromtimestamp(started_us / 1_000_000, UTC)
    return f"{began:%Y-%m-%dT%H:%MZ}-{digest.hexdigest()[:8]}"
