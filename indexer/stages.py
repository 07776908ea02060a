"""The second half of a build: centroids, assignment, segments, manifest; each is saved."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carpool.disk.manifest import Manifest
from carpool.disk.pages import choose_layout
from carpool.errors import ConfigError
from indexer.clustering import Assignment, assign_rows, train_centroids
from indexer.kmeans import use_threads
from indexer.plan.defaults import default_nlist
from indexer.plan.state import AssignmentDone, BuildState
from indexer.progress import ProgressReport
from indexer.settings import IndexerSettings
from indexer.vectors import Vectors, bytes_of
from indexer.workspace import Workspace
from indexer.write import finish, plan_segments, write_clusters

CENTROIDS_NAME = "centroids.f32"
ASSIGNMENT_NAME = "assignment.i32"

Float32 = npt.NDArray[np.float32]


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
