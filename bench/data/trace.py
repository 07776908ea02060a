"""Traces: windows of questions as cluster ids, with the sizes of the clusters. No vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.evaluation import EvaluationData, Float32, read_vectors
from carpool.disk.centroids import probe
from indexer.clustering import ITERATIONS, assign_rows, train_centroids
from indexer.plan.state import ClusteringIdentity
from indexer.progress import SilentProgress
from indexer.vectors import CHUNK_ROWS, Vectors
from searcher.plan.slices import SliceId

Clusters = tuple[SliceId, ...]
TraceWindow = tuple[Clusters, ...]
"""C(q) of each of its queries, nearest first."""

QUESTIONS = ("queries-hotpotqa", "queries-nq")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Windows in the order of search. `size_bytes`, `row_count`: of every cluster."""

    windows: tuple[TraceWindow, ...]
    size_bytes: Mapping[SliceId, int]
    row_count: Mapping[SliceId, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all clusters."""
        return sum(self.size_bytes.values())


def soonest(windows: Sequence[Sequence[Clusters]]) -> dict[SliceId, int]:
    """Returns in how many windows each cluster is wanted next; 1 is the first of `windows`."""
    found: dict[SliceId, int] = {}
    for number, window in enumerate(windows, start=1):
        for clusters in window:
            for cluster in clusters:
                found.setdefault(cluster, number)
    return found


def cut(queries: Sequence[Clusters], window: int) -> tuple[TraceWindow, ...]:
    """Returns `queries` in full windows; a last one that is not full is dropped."""
    return tuple(
        tuple(queries[at : at + window]) for at in range(0, len(queries) - window + 1, window)
    )


class MemoryVectors(Vectors):
    """Rows in memory, which are clustered as a build does."""

    def __init__(self, rows: Float32) -> None:
        """`rows`: (row_count, dimension) float32, row-normalised; not copied."""
        super().__init__([], dimension=rows.shape[1])
        self._rows = rows
        self.row_count = len(rows)

    def chunks(self, *, are_as_stored: bool = False) -> Iterator[tuple[int, Float32]]:
        """Yields (first row, a view of the rows) in order."""
        for first in range(0, self.row_count, CHUNK_ROWS):
            yield first, self._rows[first : first + CHUNK_ROWS]


class Clustered(NamedTuple):
    """Clusters of some vectors: `centroids` (nlist, dim) float32, `clusters` (rows,) int64."""

    centroids: Float32
    clusters: npt.NDArray[np.int64]


def cluster(
    vectors: Vectors,
    *,
    nlist: int,
    seed: int,
    iterations: int = ITERATIONS,
    on_rows: Callable[[int], None] = lambda _: None,
) -> Clustered:
    """Returns clusters of row-normalised vectors, made as `carpool index build` does. Blocks."""
    identity = ClusteringIdentity(nlist=nlist, seed=seed, train_bytes_max=1 << 30)
    centroids = train_centroids(vectors, nlist, identity, SilentProgress(), iterations=iterations)
    clusters = assign_rows(vectors, centroids, on_rows).clusters
    return Clustered(centroids, clusters.astype(np.int64))


def cluster_quickly(vectors: Float32, *, nlist: int, seed: int) -> Clustered:
    """Returns clusters of (rows, dim) float32, row-normalised, trained in 10 rounds. Blocks."""
    return cluster(MemoryVectors(vectors), nlist=nlist, seed=seed, iterations=10)


def trace_over(
    centroids: Float32,
    questions: Float32,
    size_bytes: Mapping[SliceId, int],
    row_count: Mapping[SliceId, int],
    *,
    nprobe: int,
    window: int,
) -> Trace:
    """Returns the trace of `questions`, (n, dim) float32, over clusters of these sizes."""
    probes = probe(centroids, questions, nprobe).tolist()
    queries = [tuple(map(SliceId, found)) for found in probes]
    return Trace(windows=cut(queries, window), size_bytes=size_bytes, row_count=row_count)


def read_questions(data: EvaluationData, seed: int) -> Float32:
    """Returns distinct questions in an order of `seed`: (n, dim) float32, row-normalised."""
    questions = np.unique(
        np.concatenate([read_vectors(data.vectors_path(name)) for name in QUESTIONS]), axis=0
    )
    shuffled: Float32 = questions[np.random.default_rng(seed).permutation(len(questions))]
    return shuffled
