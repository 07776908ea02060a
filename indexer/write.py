"""Writes an index whose clusters are known: segments, tables, and the manifest last."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, UInt32
from carpool.clock import Clock
from carpool.codes.codec import CodeLayout
from carpool.codes.int4 import Encoder, code_layout
from carpool.digest import DIGEST_BYTES, digest_of
from carpool.disk.centroids import centroids_fingerprint, write_centroids
from carpool.disk.document_keys import entries_of, write_document_keys
from carpool.disk.document_rows import documents_of_places, write_document_rows
from carpool.disk.extent_table import write_extents
from carpool.disk.extents import ClusterExtent, plan_extents
from carpool.disk.files import file_crc32
from carpool.disk.index import index_files
from carpool.disk.manifest import FORMAT, FileEntry, Manifest, read_manifest, write_manifest
from carpool.disk.pages import PageLayout, choose_layout
from carpool.disk.rotation import random_rotation, write_rotation
from carpool.disk.segments import SegmentWriter, build_id_of
from carpool.errors import ConfigError
from indexer.plan.defaults import default_nprobe
from indexer.plan.passes import memory_min_bytes, plan_passes
from indexer.plan.state import BuildIdentity, CorpusIdentity
from indexer.progress import ProgressReport
from indexer.vectors import Vectors, bytes_of
from schemas.document import DocumentKey

ROTATION_SEED = 0


class Clusters(NamedTuple):
    """Centroids: (nlist, dim) float32. The cluster of each row: (row_count,) int32.

    `vectors_digest`: of the vectors that were assigned.
    """

    centroids: Float32
    rows: npt.NDArray[np.int32]
    vectors_digest: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is written: clusters, page layout, place of each cluster, codes, and build id."""

    identity: BuildIdentity
    clusters: Clusters
    layout: PageLayout
    build_id: int
    extents: tuple[ClusterExtent, ...]
    codes: tuple[CodeLayout, ...]
    rotation: Float32


def documents_build_id(corpus: CorpusIdentity) -> int:
    """Returns the build id of the documents of a corpus: the same for the same documents."""
    return build_id_of(msgspec.json.encode(corpus))


def digest_of_id(doc_id: str) -> bytes:
    """Returns the digest of the key of a document that is one passage: its id is the key."""
    return digest_of(DocumentKey("", doc_id).encode())


def write_keys(folder: Path, digests: bytes | bytearray) -> None:
    """Writes the table of documents where each is one passage. Durable.

    `digests`: of the keys, 16 bytes a document, in the order of the corpus.
    """
    counts = np.ones(len(digests) // DIGEST_BYTES, np.uint32)
    write_document_keys(folder, [entries_of(digests, counts)])


def plan_segments(identity: BuildIdentity, clusters: Clusters) -> Plan:
    """Returns the place of each cluster, and the build id: a hash of all inputs of the bytes.

    Raises `ValueError` where a row does not fit any page.
    """
    nlist, dimension = clusters.centroids.shape
    counts = np.bincount(clusters.rows, minlength=nlist).tolist()
    layout = choose_layout(dimension, identity.layout.vector_dtype, counts)
    has_codes = len(clusters.rows) >= identity.layout.code_rows_min
    codes = (code_layout(dimension),) if has_codes else ()
    build_id = build_id_of(
        msgspec.json.encode(identity),
        msgspec.json.encode((layout, codes)),
        bytes(bytes_of(clusters.centroids)),
        bytes(bytes_of(clusters.rows)),
        clusters.vectors_digest.encode(),
    )
    return Plan(
        identity=identity,
        clusters=clusters,
        layout=layout,
        build_id=build_id,
        extents=plan_extents(layout, counts, segment_bytes_max=identity.layout.segment_bytes_max),
        codes=codes,
        rotation=random_rotation(dimension, ROTATION_SEED),
    )


def write_clusters(
    folder: Path, vectors: Vectors, plan: Plan, memory_bytes: int, progress: ProgressReport
) -> dict[str, FileEntry]:
    """Writes the missing segments, durably; rows in the order of the corpus. Blocks.

    Each pass reads all vectors once, front to back, and collects as many clusters as fit
    `memory_bytes`. Further memory: 12 bytes a row, and a chunk of vectors. Raises `ConfigError`
    where a cluster does not fit.
    """
    centroids = plan.clusters.centroids
    writer = SegmentWriter(
        folder,
        layout=plan.layout,
        build_id=plan.build_id,
        extents=plan.extents,
        encoder=next((Encoder(code, centroids, plan.rotation) for code in plan.codes), None),
    )
    if first := writer.next_cluster:
        progress.note(f"{first:,} of {len(plan.extents):,} clusters were written before")
    counts = [extent.row_count for extent in writer.remaining]
    if memory_bytes < (least_bytes := memory_min_bytes(plan.layout, counts)):
        raise ConfigError(
            f"indexer.memory_bytes is {memory_bytes}, too little to write the largest cluster "
            f"({max(counts):,} rows); give at least {least_bytes}, or more and so smaller clusters "
            "(--nlist)"
        )
    passes = plan_passes(plan.layout, counts, memory_bytes=memory_bytes)
    order = np.argsort(plan.clusters.rows, kind="stable")
    ends = np.cumsum([extent.row_count for extent in plan.extents])
    many = f", {len(passes)} passes" if len(passes) != 1 else ""
    progress.start(f"writing clusters{many} (rows)", vectors.row_count * len(passes))
    try:
        for positions in passes:
            extents = plan.extents[first + positions.start : first + positions.stop]
            start = int(ends[extents[0].cluster]) - extents[0].row_count
            rows = order[start : int(ends[extents[-1].cluster])]
            collected = np.empty((len(rows), vectors.dimension), dtype=plan.layout.vector_dtype)
            vectors.gather(rows, collected, progress.advance)
            for extent in extents:
                these, collected = np.split(collected, [extent.row_count])
                writer.append(extent.cluster, these.astype(np.float32, copy=False))
    except BaseException:
        writer.abandon()
        raise
    return writer.close()


def finish(folder: Path, plan: Plan, started_us: int, segments: dict[str, FileEntry]) -> Manifest:
    """Writes the small files, and then the manifest; returns it. Blocks.

    `segments`: the entries of segments and codes. Files of an earlier run are removed.
    """
    centroids, of_vectors = plan.clusters.centroids, plan.identity.vectors
    order = np.argsort(plan.clusters.rows, kind="stable")
    places = documents_of_places(plan.layout, plan.extents, order)
    files = write_tables(folder, centroids, plan.rotation, plan.extents, places, segments)
    fingerprint = centroids_fingerprint(centroids)
    manifest = Manifest(
        format=FORMAT,
        index_version=index_version(started_us, files, of_vectors.embedding_model, fingerprint),
        dimension=centroids.shape[1],
        metric="inner_product",
        nlist=len(centroids),
        codes=plan.codes,
        vector_dtype=plan.layout.vector_dtype,
        embedding_model=of_vectors.embedding_model,
        embedding_model_name=of_vectors.embedding_model_name,
        centroids_fingerprint=fingerprint,
        row_count=len(plan.clusters.rows),
        nprobe_default=default_nprobe(len(plan.clusters.rows), len(centroids)),
        files=files,
        page_bytes=plan.layout.page_bytes,
        build_id=plan.build_id,
        documents_build_id=documents_build_id(plan.identity.corpus),
        segment_count=plan.extents[-1].segment + 1,
    )
    write_manifest(folder, manifest)
    return manifest


def write_tables(
    folder: Path,
    centroids: Float32,
    rotation: Float32,
    extents: Sequence[ClusterExtent],
    places: UInt32,
    segments: dict[str, FileEntry],
) -> dict[str, FileEntry]:
    """Writes the small files, and removes what is not of the index; returns the entry of each file.

    `places`: the document of each place; `segments`: the entries of segments and codes. Documents
    and their table are there already. Blocks.
    """
    write_centroids(folder, centroids)
    write_extents(folder, extents)
    write_rotation(folder, rotation)
    write_document_rows(folder, places)
    names = [*segments, *index_files(0)]
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    return {name: segments.get(name) or entry_of(folder / name) for name in sorted(names)}


def entry_of(path: Path) -> FileEntry:
    """Returns the entry of a file; reads all of it."""
    return FileEntry(size_bytes=path.stat().st_size, crc32=file_crc32(path))


def index_version(
    started_us: int, files: dict[str, FileEntry], embedding_model: str, fingerprint: str
) -> str:
    """Returns a version such as "2026-11-21T10:00:07Z-7f3a91c2": start time and content hash.

    Versions are ordered as texts (`carpool.disk.manifest.is_newer`).
    """
    digest = hashlib.sha256(f"{embedding_model}\0{fingerprint}".encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{files[name].size_bytes}\0{files[name].crc32}".encode())
    began = datetime.fromtimestamp(started_us / 1_000_000, UTC)
    return f"{began:%Y-%m-%dT%H:%M:%SZ}-{digest.hexdigest()[:8]}"


def promote(index_dir: Path, clock: Clock) -> str:
    """Gives the index at `index_dir` the version of a build that began now, and returns it.

    Services that have the index open keep the earlier version until they are restarted. Raises
    `ConfigError` where there is no index, `CorruptionError` where its manifest is damaged.
    """
    manifest = read_manifest(index_dir)
    version = index_version(
        clock.now_us(), manifest.files, manifest.embedding_model, manifest.centroids_fingerprint
    )
    write_manifest(index_dir, msgspec.structs.replace(manifest, index_version=version))
    return version
