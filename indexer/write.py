"""The second half of a build: centroids, assignment, segments, tables, and the manifest last.

Each step is saved, so that a killed build continues with the next one.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

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
from indexer.clustering import Assignment, assign_rows, train_centroids
from indexer.kmeans import use_threads
from indexer.plan.defaults import default_nlist, default_nprobe
from indexer.plan.passes import memory_min_bytes, plan_passes
from indexer.plan.state import AssignmentDone, BuildIdentity, BuildState, CorpusIdentity
from indexer.progress import ProgressReport
from indexer.settings import IndexerSettings
from indexer.vectors import Vectors, bytes_of
from indexer.workspace import Workspace

ROTATION_SEED = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The segments to write: page layout, place of each cluster, codes, and build id."""

    layout: PageLayout
    build_id: int
    extents: tuple[ClusterExtent, ...]
    codes: tuple[CodeLayout, ...]


def documents_build_id(corpus: CorpusIdentity) -> int:
    """Returns the build id of the documents of a corpus: the same for the same documents."""
    return build_id_of(msgspec.json.encode(corpus))


def plan_segments(
    identity: BuildIdentity, dimension: int, centroids: Float32, assignment: Assignment
) -> Plan:
    """Returns the place of each cluster, and the build id: a hash of all inputs of the bytes.

    Raises `ValueError` where a row of `dimension` does not fit any page.
    """
    counts = np.bincount(assignment.clusters, minlength=len(centroids)).tolist()
    layout = choose_layout(dimension, identity.layout.vector_dtype, counts)
    has_codes = len(assignment.clusters) >= identity.layout.code_rows_min
    codes = (code_layout(dimension),) if has_codes else ()
    build_id = build_id_of(
        msgspec.json.encode(identity),
        msgspec.json.encode((layout, codes)),
        bytes(bytes_of(centroids)),
        bytes(bytes_of(assignment.clusters)),
        assignment.vectors_digest.encode(),
    )
    extents = plan_extents(layout, counts, segment_bytes_max=identity.layout.segment_bytes_max)
    return Plan(layout=layout, build_id=build_id, extents=extents, codes=codes)


def rotation_of(dimension: int) -> Float32:
    """Returns the rotation of the codes of every index of this dimension: (dim, dim) float32."""
    return random_rotation(dimension, ROTATION_SEED)


def write_clusters(
    folder: Path,
    vectors: Vectors,
    clusters: npt.NDArray[np.int32],
    centroids: Float32,
    plan: Plan,
    *,
    memory_bytes: int,
    progress: ProgressReport,
) -> dict[str, FileEntry]:
    """Writes the missing segments, durably; rows in the order of the corpus. Blocks.

    Each pass reads all vectors once, front to back, and collects as many clusters as fit
    `memory_bytes`. Memory beside that: 12 bytes a row, and a chunk of vectors. Raises `ConfigError`
    where a cluster does not fit.
    """
    rotation = rotation_of(vectors.dimension)
    writer = SegmentWriter(
        folder,
        layout=plan.layout,
        build_id=plan.build_id,
        extents=plan.extents,
        encoder=next((Encoder(code, centroids, rotation) for code in plan.codes), None),
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
    order = np.argsort(clusters, kind="stable")
    ends = np.cumsum([extent.row_count for extent in plan.extents])
    many = f", {len(passes)} passes" if len(passes) != 1 else ""
    progress.start(f"writing clusters{many} (rows)", vectors.row_count * len(passes))
    try:
        for positions in passes:
            taken = range(first + positions.start, first + positions.stop)
            start = int(ends[taken.start]) - plan.extents[taken.start].row_count
            rows = order[start : int(ends[taken.stop - 1])]
            _write_pass(writer, vectors, rows, plan, taken, progress)
    except BaseException:
        writer.abandon()
        raise
    return writer.close()


def _write_pass(
    writer: SegmentWriter,
    vectors: Vectors,
    rows: npt.NDArray[np.int64],
    plan: Plan,
    clusters: range,
    progress: ProgressReport,
) -> None:
    """Collects `rows`, those of `clusters` one after the other, in one pass and writes them."""
    collected = np.empty((len(rows), vectors.dimension), dtype=plan.layout.vector_dtype)
    vectors.gather(rows, collected, progress.advance)
    start = 0
    for extent in plan.extents[clusters.start : clusters.stop]:
        stop = start + extent.row_count
        writer.append(extent.cluster, collected[start:stop].astype(np.float32, copy=False))
        start = stop


def finish(
    folder: Path,
    *,
    identity: BuildIdentity,
    started_us: int,
    centroids: Float32,
    plan: Plan,
    clusters: npt.NDArray[np.int32],
    segments: dict[str, FileEntry],
) -> Manifest:
    """Writes the small files, and then the manifest; returns it. Blocks.

    `segments`: the entries of segments and codes. Files of an earlier run are removed.
    """
    write_centroids(folder, centroids)
    write_extents(folder, plan.extents)
    write_rotation(folder, rotation_of(centroids.shape[1]))
    order = np.argsort(clusters, kind="stable")
    write_document_rows(folder, documents_of_places(plan.layout, plan.extents, order))
    names = index_files(plan.extents[-1].segment + 1, [code.codec for code in plan.codes])
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    files = {name: segments.get(name) or _entry(folder / name) for name in names}
    fingerprint = centroids_fingerprint(centroids)
    manifest = Manifest(
        format=FORMAT,
        index_version=index_version(
            started_us, files, identity.vectors.embedding_model, fingerprint
        ),
        dimension=centroids.shape[1],
        metric="inner_product",
        nlist=len(centroids),
        codes=plan.codes,
        vector_dtype=plan.layout.vector_dtype,
        embedding_model=identity.vectors.embedding_model,
        embedding_model_name=identity.vectors.embedding_model_name,
        centroids_fingerprint=fingerprint,
        row_count=sum(extent.row_count for extent in plan.extents),
        nprobe_default=default_nprobe(len(clusters), len(centroids)),
        files=files,
        page_bytes=plan.layout.page_bytes,
        build_id=plan.build_id,
        documents_build_id=documents_build_id(identity.corpus),
        segment_count=plan.extents[-1].segment + 1,
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
ASSIGNMENT_NAME = "assignment.i32"


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
    state, centroids = _ensure_centroids(workspace, state, vectors, progress)
    state, assignment = _ensure_assignment(workspace, state, vectors, centroids, progress)
    centroids, assignment = _without_empty(centroids, assignment, progress)
    plan = plan_segments(state.identity, vectors.dimension, centroids, assignment)
    segments = write_clusters(
        workspace.finished,
        vectors,
        assignment.clusters,
        centroids,
        plan,
        memory_bytes=settings.memory_bytes,
        progress=progress,
    )
    return finish(
        workspace.finished,
        identity=state.identity,
        started_us=state.started_us,
        centroids=centroids,
        plan=plan,
        clusters=assignment.clusters,
        segments=segments,
    )


def _ensure_centroids(
    workspace: Workspace, state: BuildState, vectors: Vectors, progress: ProgressReport
) -> tuple[BuildState, Float32]:
    asked = state.identity.clustering.nlist
    nlist = asked or default_nlist(vectors.row_count)
    if not asked:
        progress.note(f"nlist {nlist:,} for {vectors.row_count:,} passages; --nlist sets another")
    if state.centroids_crc32 is not None:
        content = workspace.load(CENTROIDS_NAME, state.centroids_crc32)
        if content is not None:
            progress.note(f"{nlist:,} clusters were trained before")
            return state, np.frombuffer(content, dtype="<f4").reshape(nlist, vectors.dimension)
    centroids = train_centroids(vectors, nlist, state.identity.clustering, progress)
    crc32 = workspace.save(CENTROIDS_NAME, bytes_of(centroids))
    return workspace.save_state(state, centroids_crc32=crc32, assignment=None), centroids


def _ensure_assignment(
    workspace: Workspace,
    state: BuildState,
    vectors: Vectors,
    centroids: Float32,
    progress: ProgressReport,
) -> tuple[BuildState, Assignment]:
    if state.assignment is not None:
        content = workspace.load(ASSIGNMENT_NAME, state.assignment.crc32)
        if content is not None:
            progress.note(f"{vectors.row_count:,} rows were assigned before")
            return state, Assignment(
                np.frombuffer(content, dtype="<i4"), state.assignment.vectors_digest
            )
    progress.start("assigning", vectors.row_count)
    assignment = assign_rows(vectors, centroids, progress.advance)
    crc32 = workspace.save(ASSIGNMENT_NAME, bytes_of(assignment.clusters))
    done = AssignmentDone(crc32=crc32, vectors_digest=assignment.vectors_digest)
    return workspace.save_state(state, assignment=done), assignment


def _without_empty(
    centroids: Float32, assignment: Assignment, progress: ProgressReport
) -> tuple[Float32, Assignment]:
    """Returns the clusters that have rows, numbered anew: a query would probe others for nothing.

    Many equal vectors leave many clusters empty.
    """
    has_rows = np.bincount(assignment.clusters, minlength=len(centroids)) > 0
    if empty := len(centroids) - int(has_rows.sum()):
        progress.note(f"{empty:,} of {len(centroids):,} clusters got no row and are left out")
    numbers = np.cumsum(has_rows, dtype=np.int32) - 1
    return centroids[has_rows], assignment._replace(clusters=numbers[assignment.clusters])


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
