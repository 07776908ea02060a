"""IVF clustering: spherical k-means on a sample, made more even, then the cluster of each row.

Each step is saved, so that a killed build continues with the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from carpool.arrays import Float32
from carpool.disk.manifest import Manifest
from carpool.disk.pages import choose_layout
from carpool.errors import ConfigError
from indexer.kmeans import kmeans, nearest, use_threads
from indexer.plan.balance import Balance, plan_balance, unevenness
from indexer.plan.defaults import default_nlist
from indexer.plan.passes import sample_rows_max
from indexer.plan.state import BuildState, ClusteringIdentity, ClustersDone
from indexer.progress import ProgressReport
from indexer.settings import IndexerSettings
from indexer.vectors import Vectors, bytes_of
from indexer.workspace import Workspace
from indexer.write import Clusters, finish, plan_segments, write_clusters

FIRST_ROWS_PER_CLUSTER, FIRST_ROUNDS = 64, 8
"""Few rows find the places of the centroids, and the sizes of clusters to 12 %."""
ROWS_PER_CLUSTER, LAST_ROUNDS = 256, 3
"""More rows then make the centroids exact: as good as 20 rounds with all of them."""


class Assignment(NamedTuple):
    """The cluster of each row, (row_count,) int32, and a digest of the assigned vectors."""

    clusters: npt.NDArray[np.int32]
    vectors_digest: str


def train_centroids(
    vectors: Vectors, nlist: int, settings: ClusteringIdentity, progress: ProgressReport
) -> Float32:
    """Returns centroids: (nlist, dim) float32, row-normalised, trained on a seeded sample. Blocks.

    That of a single cluster is zero: most rows are nearer to it than to their mean direction, and
    the error of a code grows with this distance. The same vectors, settings and threads give the
    same bytes. Raises `ConfigError` where the rows, or the rows that fit memory, are fewer than the
    clusters.
    """
    if nlist > vectors.row_count:
        raise ConfigError(
            f"nlist is {nlist} for {vectors.row_count} passages; give --nlist {vectors.row_count} "
            "or less"
        )
    if nlist == 1:
        return np.zeros((1, vectors.dimension), np.float32)
    sample = _sample(vectors, nlist, settings, progress)
    progress.start(f"training {nlist:,} clusters", FIRST_ROUNDS + LAST_ROUNDS)

    def train(rows: Float32, rounds: int, start: Float32 | None) -> Float32:
        for _ in range(rounds):
            # One round a call, from the centroids of the call before, to report progress.
            start = kmeans(rows, nlist, iterations=1, seed=settings.seed, start=start)
            progress.advance(1)
        assert start is not None
        return start

    first = sample[: nlist * FIRST_ROWS_PER_CLUSTER]
    centroids = train(first, FIRST_ROUNDS, None)
    centroids = balance_centroids(first, centroids, settings.seed, progress.note)
    return train(sample, LAST_ROUNDS, centroids)


def _sample(
    vectors: Vectors, nlist: int, settings: ClusteringIdentity, progress: ProgressReport
) -> Float32:
    """Returns rows in random order, so that the first ones are a sample too."""
    try:
        count = sample_rows_max(
            vectors.row_count,
            nlist,
            dimension=vectors.dimension,
            rows_per_cluster=ROWS_PER_CLUSTER,
            bytes_max=settings.train_bytes_max,
        )
    except ValueError as error:
        raise ConfigError(
            f"indexer.memory_bytes is {settings.train_bytes_max}: {error}; give at least "
            f"{nlist * vectors.dimension * 4}, better 40 times that"
        ) from error
    chosen = np.random.default_rng(settings.seed).choice(
        vectors.row_count, size=count, replace=False
    )
    sample = np.empty((count, vectors.dimension), dtype=np.float32)
    progress.start("sampling", vectors.row_count)
    vectors.gather(chosen.astype(np.int64), sample, progress.advance)
    return sample


def assign_rows(vectors: Vectors, centroids: Float32, on_rows: Callable[[int], None]) -> Assignment:
    """Returns the cluster of each row: the nearest centroid by inner product. One pass; blocks."""
    clusters = np.empty(vectors.row_count, dtype=np.int32)
    digest = xxhash.xxh3_128()
    for first, chunk in vectors.chunks():
        clusters[first : first + len(chunk)] = nearest(chunk, centroids)
        digest.update(bytes_of(chunk))
        on_rows(len(chunk))
    return Assignment(clusters, digest.hexdigest())


ROUNDS_MAX = 8
SETTLE_ITERATIONS = 2


def balance_centroids(
    sample: Float32, centroids: Float32, seed: int, note: Callable[[str], None]
) -> Float32:
    """Returns as many centroids, whose clusters are within the factors of the plan if possible.

    `sample`: (n, dim) float32, random rows, 64 a cluster give sizes to 12 %. Each round splits by
    seeded k-means, then trains all centroids a little, and is kept only if clusters became more
    even: equal rows cannot be split. Deterministic. Memory: a second set of centroids and the
    largest cluster of the sample. Blocks.
    """
    clusters, counts, left = _judge(sample, centroids)
    for _ in range(ROUNDS_MAX):
        balance = plan_balance(counts)
        if not balance.splits:
            break
        candidate = _apply(sample, clusters, centroids, balance, seed)
        clusters, counts, left_then = _judge(sample, candidate)
        if left_then >= left:
            break
        note(
            f"clusters made more even: {len(balance.splits)} split, {len(balance.dissolved)} of "
            "the smallest dissolved"
        )
        centroids, left = candidate, left_then
    return centroids


def _judge(sample: Float32, centroids: Float32) -> tuple[npt.NDArray[np.int32], list[int], float]:
    clusters = nearest(sample, centroids)
    counts = np.bincount(clusters, minlength=len(centroids)).tolist()
    return clusters, counts, unevenness(counts)


def _apply(
    sample: Float32,
    clusters: npt.NDArray[np.int32],
    centroids: Float32,
    balance: Balance,
    seed: int,
) -> Float32:
    mended = centroids.copy()
    free = iter(balance.dissolved)
    for cluster, pieces in balance.splits:
        parts = kmeans(sample[clusters == cluster], pieces, iterations=20, seed=seed)
        mended[[cluster, *islice(free, pieces - 1)]] = parts
    return kmeans(sample, len(mended), iterations=SETTLE_ITERATIONS, seed=seed, start=mended)


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
