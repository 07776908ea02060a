"""What is asked: windows of questions, each the clusters that it probes, and how large the clusters
are. No vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.evaluation import CORPUS, EvaluationData, Float32, read_vectors
from carpool.disk.centroids import probe
from carpool.disk.pages import choose_layout
from indexer.clustering import assign_rows, clustering_identity, train_centroids
from indexer.progress import SilentProgress
from indexer.settings import IndexerSettings
from indexer.vectors import MemoryVectors
from schemas.record import ClusterId

Clusters = tuple[ClusterId, ...]
Window = tuple[Clusters, ...]
"""C(q) of each of its queries, nearest first."""

QUESTIONS = ("queries-hotpotqa", "queries-nq")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Windows in the order in which they are searched. `size_bytes` and `row_count` have every
    cluster of the index.
    """

    windows: tuple[Window, ...]
    size_bytes: Mapping[ClusterId, int]
    row_count: Mapping[ClusterId, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all clusters."""
        return sum(self.size_bytes.values())

    def wanted(self) -> tuple[Clusters, ...]:
        """Returns the clusters of each window, each once, ascending."""
        return tuple(
            tuple(sorted({c for query in window for c in query})) for window in self.windows
        )


def horizons(
    wanted: Sequence[Clusters], windows_ahead: int | None
) -> Iterator[dict[ClusterId, int]]:
    """Yields, for each window, in how many windows each cluster is wanted next, looking
    `windows_ahead` (None: to the end).

    As the grouper writes it: 1 is the window after this one, and what is not wanted so soon is left
    out.
    """
    uses: dict[ClusterId, list[int]] = {}
    for number in range(len(wanted) - 1, -1, -1):
        for cluster in wanted[number]:
            uses.setdefault(cluster, []).append(number)
    limit = len(wanted) if windows_ahead is None else windows_ahead
    for number, clusters in enumerate(wanted):
        for cluster in clusters:
            uses[cluster].pop()
        yield {
            c: left[-1] - number for c, left in uses.items() if left and left[-1] - number <= limit
        }


def cut(queries: Sequence[Clusters], window: int) -> tuple[Window, ...]:
    """Returns `queries` in windows of `window`, the last one dropped where it is not full."""
    return tuple(
        tuple(queries[at : at + window]) for at in range(0, len(queries) - window + 1, window)
    )


class Clustered(NamedTuple):
    """Clusters of some vectors: `centroids` (nlist, dim) float32, `assigned` (rows,) int64."""

    centroids: Float32
    assigned: npt.NDArray[np.int64]


def cluster(vectors: Float32, *, nlist: int, seed: int) -> Clustered:
    """Clusters (rows, dim) float32, row-normalised, as the indexer does. Blocks."""
    rows = MemoryVectors(vectors)
    identity = clustering_identity(IndexerSettings(train_iterations=10), nlist=nlist, seed=seed)
    centroids = train_centroids(rows, nlist, identity, SilentProgress())
    return Clustered(
        centroids, assign_rows(rows, centroids, lambda _: None).clusters.astype(np.int64)
    )


def trace_of(clustered: Clustered, questions: Float32, *, nprobe: int, window: int) -> Trace:
    """Returns the trace of `questions`, (n, dim) float32, row-normalised, in this order; sizes are
    those of float32 pages.
    """
    nlist, dimension = clustered.centroids.shape
    rows = np.bincount(clustered.assigned, minlength=nlist).tolist()
    layout = choose_layout(dimension, "float32", rows)
    return trace_over(
        clustered.centroids,
        questions,
        {ClusterId(c): layout.page_count(n) * layout.page_bytes for c, n in enumerate(rows)},
        {ClusterId(c): n for c, n in enumerate(rows)},
        nprobe=nprobe,
        window=window,
    )


def trace_over(
    centroids: Float32,
    questions: Float32,
    size_bytes: Mapping[ClusterId, int],
    row_count: Mapping[ClusterId, int],
    *,
    nprobe: int,
    window: int,
) -> Trace:
    """Returns the trace of `questions`, (n, dim) float32, in this order, over clusters of these
    sizes.
    """
    probes = probe(centroids, questions, nprobe).tolist()
    queries = [tuple(map(ClusterId, found)) for found in probes]
    return Trace(windows=cut(queries, window), size_bytes=size_bytes, row_count=row_count)


def read_questions(data: EvaluationData, seed: int) -> Float32:
    """Returns the distinct question vectors of the data in an order of `seed`: (n, dim) float32,
    row-normalised.
    """
    questions = np.unique(
        np.concatenate([read_vectors(data.vectors_path(name)) for name in QUESTIONS]), axis=0
    )
    shuffled: Float32 = questions[np.random.default_rng(seed).permutation(len(questions))]
    return shuffled


def question_trace(
    data: EvaluationData, *, nlist: int, nprobe: int, window: int, seed: int
) -> Trace:
    """Returns the questions of the data over its passages, clusters and the order of the questions
    from `seed`. Blocks.
    """
    clustered = cluster(read_vectors(data.vectors_path(CORPUS)), nlist=nlist, seed=seed)
    return trace_of(clustered, read_questions(data, seed), nprobe=nprobe, window=window)
