"""What is asked: windows of questions, each the clusters that it probes, and how large the clusters are. No vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bench.data import CORPUS, EvaluationData, Float32, read_vectors
from carpool.disk.centroids import probe
from carpool.disk.pages import choose_layout
from indexer.clustering import assign_rows, train_centroids
from indexer.plan import ClusteringIdentity
from indexer.vectors import Vectors
from schemas.record import ClusterId

Clusters = tuple[ClusterId, ...]
Window = tuple[Clusters, ...]
"""C(q) of each of its queries, nearest first."""

QUESTIONS = ("queries-hotpotqa", "queries-nq")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Windows in the order in which they are searched. `size_bytes` and `row_count` have every cluster of the index."""

    windows: tuple[Window, ...]
    size_bytes: Mapping[ClusterId, int]
    row_count: Mapping[ClusterId, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all clusters."""
        return sum(self.size_bytes.values())

    def wanted(self) -> tuple[Clusters, ...]:
        """Returns the clusters of each window, each once, ascending."""
        return tuple(tuple(sorted({c for query in window for c in query})) for window in self.windows)


def horizons(wanted: Sequence[Clusters], windows_ahead: int | None) -> Iterator[dict[ClusterId, int]]:
    """Yields, for each window, in how many windows each cluster is wanted next, looking `windows_ahead` (None: to the end).

    As the grouper writes it: 1 is the window after this one, and what is not wanted so soon is left out.
    """
    uses: dict[ClusterId, list[int]] = {}
    for number in range(len(wanted) - 1, -1, -1):
        for cluster in wanted[number]:
            uses.setdefault(cluster, []).append(number)
    limit = len(wanted) if windows_ahead is None else windows_ahead
    for number, clusters in enumerate(wanted):
        for cluster in clusters:
            uses[cluster].pop()
        yield {c: left[-1] - number for c, left in uses.items() if left and left[-1] - number <= limit}


def cut(queries: Sequence[Clusters], window: int) -> tuple[Window, ...]:
    """Returns `queries` in windows of `window`, the last one dropped where it is not full."""
    return tuple(tuple(queries[at : at + window]) for at in range(0, len(queries) - window + 1, window))


def question_trace(data: EvaluationData, *, nlist: int, nprobe: int, window: int, seed: int) -> Trace:
    """Returns the questions of the data over its passages: clusters trained from `seed`, questions in an order of `seed`.

    Sizes are those of the pages that a float32 index would have. Blocks for the clustering, seconds.
    """
    passages = read_vectors(data.vectors_path(CORPUS))
    questions = np.concatenate([read_vectors(data.vectors_path(name)) for name in QUESTIONS])
    questions = np.unique(questions, axis=0)
    return vectors_trace(passages, questions, nlist=nlist, nprobe=nprobe, window=window, seed=seed)


def vectors_trace(passages: Float32, questions: Float32, *, nlist: int, nprobe: int, window: int, seed: int) -> Trace:
    """Returns a trace of `questions` over clusters of `passages`, both (rows, dim) float32, row-normalised. Blocks."""
    vectors = Vectors([passages], block_rows=len(passages))
    identity = ClusteringIdentity(nlist=nlist, seed=seed, train_rows_per_cluster=256, train_iterations=10)
    centroids = train_centroids(vectors, nlist, identity, threads=1)
    rows = np.bincount(assign_rows(vectors, centroids, lambda _: None), minlength=nlist)
    shuffled = questions[np.random.default_rng(seed).permutation(len(questions))]
    probes = probe(centroids, shuffled, nprobe).tolist()
    layout = choose_layout(passages.shape[1], "float32")
    return Trace(
        windows=cut([tuple(map(ClusterId, found)) for found in probes], window),
        size_bytes={ClusterId(c): layout.page_count(int(n)) * layout.page_bytes for c, n in enumerate(rows)},
        row_count={ClusterId(c): int(n) for c, n in enumerate(rows)},
    )
