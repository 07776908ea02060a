"""The second half of a build: centroids, assignment, segments, tables, and the manifest last.

Each step is saved, so that a killed build continues with the next one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32
from carpool.clock import Clock
from carpool.codes.codec import CodeLayout
from carpool.codes.int4 import Encoder, code_layout
from carpool.disk.centroids import centroids_fingerprint, write_centroids
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
from indexer.clustering import assign_rows, train_centroids
from indexer.kmeans import use_threads
from indexer.plan.defaults import default_nlist, default_nprobe
from indexer.plan.passes import memory_min_bytes, plan_passes
from indexer.plan.state import BuildIdentity, BuildState, ClustersDone, CorpusIdentity
from indexer.progress import ProgressReport
from indexer.settings import IndexerSettings
from indexer.vectors import Vectors, bytes_of
from indexer.workspace import Workspace

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
    write_centroids(folder, centroids)
    write_extents(folder, plan.extents)
    write_rotation(folder, plan.rotation)
    order = np.argsort(plan.clusters.rows, kind="stable")
    write_document_rows(folder, documents_of_places(plan.layout, plan.extents, order))
    segment_count = plan.extents[-1].segment + 1
    names = index_files(segment_count, [code.codec for code in plan.codes])
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    files = {name: segments.get(name) or _entry(folder / name) for name in names}
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
        segment_count=segment_count,
    )
    write_manifest(folder, manifest)
    return manifest


def _entry(path: Path) -> FileEntry:
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


CENTROIDS_NAME = "centroids.f32"
ROWS_NAME = "assignment.i32"


def cluster_and_write(
    workspace: Workspace,
    settings: IndexerSettings,
    state: BuildState,
    vectors: Vectors,
    progress: ProgressReport,
) -> Manifest:
    """Returns the manifest of the finished index, before the move. Continues saved work. Blocks."""
    if settings.threads:
        use_threads(settings.threads)
    try:
        choose_layout(vectors.dimension, state.identity.layout.vector_dtype)
    except ValueError as error:
        raise ConfigError(
            f"{error}; take a model with shorter vectors, or --vector-dtype float16"
        ) from error
    clusters = _saved_clusters(workspace, state, vectors, progress)
    if clusters is None:
        clusters = _new_clusters(workspace, state, vectors, progress)
    plan = plan_segments(state.identity, _without_empty(clusters, progress))
    folder = workspace.finished
    segments = write_clusters(folder, vectors, plan, settings.memory_bytes, progress)
    return finish(folder, plan, state.started_us, segments)


def _saved_clusters(
    workspace: Workspace, state: BuildState, vectors: Vectors, progress: ProgressReport
) -> Clusters | None:
    """Returns the clusters of an earlier run; None where it saved none, or they are damaged."""
    if (done := state.clusters) is None:
        return None
    centroids = workspace.load(CENTROIDS_NAME, done.centroids_crc32)
    rows = workspace.load(ROWS_NAME, done.rows_crc32)
    if centroids is None or rows is None:
        return None
    progress.note(f"{vectors.row_count:,} rows were clustered before")
    trained = np.frombuffer(centroids, dtype="<f4").reshape(-1, vectors.dimension)
    return Clusters(trained, np.frombuffer(rows, dtype="<i4"), done.vectors_digest)


def _new_clusters(
    workspace: Workspace, state: BuildState, vectors: Vectors, progress: ProgressReport
) -> Clusters:
    """Trains centroids, assigns the rows, and saves both."""
    asked = state.identity.clustering.nlist
    nlist = asked or default_nlist(vectors.row_count)
    if not asked:
        progress.note(f"nlist {nlist:,} for {vectors.row_count:,} passages; --nlist sets another")
    centroids = train_centroids(vectors, nlist, state.identity.clustering, progress)
    progress.start("assigning", vectors.row_count)
    rows, vectors_digest = assign_rows(vectors, centroids, progress.advance)
    done = ClustersDone(
        centroids_crc32=workspace.save(CENTROIDS_NAME, bytes_of(centroids)),
        rows_crc32=workspace.save(ROWS_NAME, bytes_of(rows)),
        vectors_digest=vectors_digest,
    )
    workspace.save_state(state, clusters=done)
    return Clusters(centroids, rows, vectors_digest)


def _without_empty(clusters: Clusters, progress: ProgressReport) -> Clusters:
    """Returns the clusters that have rows, numbered anew: a query would probe others for nothing.

    Many equal vectors leave many clusters empty.
    """
    nlist = len(clusters.centroids)
    has_rows = np.bincount(clusters.rows, minlength=nlist) > 0
    if empty := nlist - int(has_rows.sum()):
        progress.note(f"{empty:,} of {nlist:,} clusters got no row and are left out")
    numbers = np.cumsum(has_rows, dtype=np.int32) - 1
    kept = clusters.centroids[has_rows]
    return clusters._replace(centroids=kept, rows=numbers[clusters.rows])


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
