"""EdgeRAG's cache and CaGR-RAG's search as published: query by query, in groups, with a prefetch.

Algorithm 1 prints the prefetch of the clusters of the next group's first query as a step after the
last search of a group (lines 35-37); nothing protects what is in the cache. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from grouper.plan.jaccard import similar_groups


class EdgeRagCache:
    """EdgeRAG's cache of `entries` clusters of any size.

    As CaGR-RAG describes it (sections 2.3 and 4.1): the cache "prioritizes cluster with high
    generation latency and accessed count": the cluster of least read time x accesses leaves, the
    one with the lower number of equals. Bytes stand for read times. The paper mentions no ageing,
    so accesses only grow, also of clusters that have left.
    """

    def __init__(self, size_bytes: Sequence[int], entries: int) -> None:
        """`size_bytes` is the size of each cluster."""
        self._size_bytes, self._entries = size_bytes, entries
        self._accesses: Counter[int] = Counter()
        self.held: set[int] = set()

    def touch(self, clusters: Collection[int]) -> int:
        """Counts an access of each; returns how many are there."""
        self._accesses.update(clusters)
        return sum(cluster in self.held for cluster in clusters)

    def read(self, clusters: Collection[int], spared: Collection[int] = ()) -> int:
        """Reads what is missing; others leave, but for `spared`. Returns the bytes."""
        missing = [cluster for cluster in clusters if cluster not in self.held]
        for cluster in missing:
            if len(self.held) >= self._entries:
                self.held.remove(min(self.held.difference(spared, missing), key=self._value))
            self.held.add(cluster)
        return sum(self._size_bytes[cluster] for cluster in missing)

    def _value(self, cluster: int) -> tuple[int, int]:
        return self._size_bytes[cluster] * self._accesses[cluster], cluster


class PublishedSearch:
    """Searches one query after the other, group after group, and counts.

    `theta` is the paper's; above 1, each query is a group, as in EdgeRAG. `hits` counts for each
    query the clusters that the cache had when its search began. `groups` counts all groups.
    """

    def __init__(
        self, size_bytes: Sequence[int], *, entries: int, theta: float, prefetches: bool
    ) -> None:
        self._theta, self._prefetches = theta, prefetches
        self.cache = EdgeRagCache(size_bytes, entries)
        self.hits: list[int] = []
        self.groups = self.bytes_read = self.prefetched_bytes = 0

    def search(self, probes: Sequence[Sequence[int]]) -> None:
        """Searches a batch: the clusters of each query, fewer than the entries of the cache."""
        groups = similar_groups(probes, jaccard_similarity_min=self._theta)
        self.groups += len(groups)
        for group, following in zip(groups, [*groups[1:], ()], strict=True):
            for clusters in (probes[query] for query in group):
                self.hits.append(self.cache.touch(clusters))
                self.bytes_read += self.cache.read(clusters, spared=clusters)
            if self._prefetches and following:
                self.prefetched_bytes += self.cache.read(probes[following[0]])
