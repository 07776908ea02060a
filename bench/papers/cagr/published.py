"""EdgeRAG's cache and CaGR-RAG's search as published: query by query, in groups, with a prefetch.

The paper contradicts itself in its prefetch of the clusters of the next group's first query.
`after`, as Algorithm 1 prints it (lines 35-37): a step after the last search of a group; nothing
protects what is in the cache. `beside`, the best reading: beside the group's searches, and what was
read is kept until it is used.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from typing import Literal

import numpy as np

from bench.papers.cagr.method import Answer, Batch
from bench.papers.cagr.overlap import greedy_groups
from bench.papers.cagr.reader import ClusterReader
from carpool.disk.index import OpenIndex
from carpool.disk.pages import ClusterPages
from searcher.scoring.scan import QueryBatch, Scoring, scan
from searcher.scoring.top_k import TopTable

Prefetch = Literal["none", "after", "beside"]


class EdgeRagCache:
    """EdgeRAG's cache of `entries` clusters of any size, those being read included.

    As CaGR-RAG describes it (sections 2.3 and 4.1): read times are measured before questions come,
    and the cache "prioritizes cluster with high generation latency and accessed count": the cluster
    of least read time x accesses leaves, the one with the lower number of equals. The paper
    mentions no ageing, so accesses only grow, also of clusters that have left.
    """

    def __init__(self, reader: ClusterReader, latency_us: Sequence[float], entries: int) -> None:
        self._reader, self._latency_us, self._entries = reader, latency_us, entries
        self._accesses: Counter[int] = Counter()
        self.held: dict[int, Future[ClusterPages]] = {}

    def touch(self, clusters: Collection[int]) -> int:
        """Counts an access of each; returns how many are there, whole."""
        self._accesses.update(clusters)
        return sum(cluster in self.held and self.held[cluster].done() for cluster in clusters)

    def begin(self, cluster: int, spared: Collection[int]) -> bool:
        """Begins to read a cluster that is not held.

        Returns False where every other cluster is spared, or being read.
        """
        if len(self.held) >= self._entries:
            free = [
                held for held, pages in self.held.items() if held not in spared and pages.done()
            ]
            if not free:
                return False
            del self.held[min(free, key=lambda each: (self._value(each), each))]
        self.held[cluster] = self._reader.begin(cluster)
        return True

    def _value(self, cluster: int) -> float:
        return self._latency_us[cluster] * self._accesses[cluster]


class PublishedSearch:
    """Implements `Method`: one query after the other, group after group.

    `similarity_min`: the paper's theta; None: EdgeRAG, without groups.
    """

    def __init__(
        self,
        index: OpenIndex,
        *,
        entries: int,
        similarity_min: float | None = None,
        prefetch: Prefetch = "none",
    ) -> None:
        """Measures the time to read each cluster. Blocks for seconds."""
        self._index = index
        self._similarity_min, self._prefetch = similarity_min, prefetch
        self._reader = ClusterReader(index)
        self.cache = EdgeRagCache(self._reader, self._reader.latencies_us(), entries)
        self.groups = self.bytes_read = self.prefetched_bytes = 0

    def search(self, batch: Batch) -> Iterator[Answer]:
        """Yields the answer of each query when it is known. Blocks."""
        groups = greedy_groups(batch.probes, self._similarity_min)
        self.groups += len(groups)
        for group, following in zip(groups, [*groups[1:], []], strict=True):
            ahead = batch.probes[following[0]].tolist() if following else []
            for at, query in enumerate(group):
                rest = set(batch.probes[group[at:]].ravel().tolist())
                yield self._find(batch, query, ahead, rest)
            if self._prefetch == "after":
                self._read_ahead(ahead, ())
                wait([self.cache.held[each] for each in ahead if each in self.cache.held])

    def close(self) -> None:
        """Closes the files."""
        self._reader.close()

    def _find(self, batch: Batch, query: int, ahead: list[int], rest: set[int]) -> Answer:
        began_s = time.perf_counter()
        clusters = batch.probes[query].tolist()
        hits = self.cache.touch(clusters)
        read_bytes = 0
        kept = (rest | set(ahead)) if self._prefetch == "beside" else set[int]()
        for cluster in [each for each in clusters if each not in self.cache.held]:
            read_bytes += self._index.extents[cluster].size_bytes
            while not any(self.cache.begin(cluster, {*clusters, *spared}) for spared in (kept, ())):
                wait([pages for pages in self.cache.held.values() if not pages.done()])
        self.bytes_read += read_bytes
        wanted = [self.cache.held[cluster] for cluster in clusters]
        if self._prefetch == "beside":
            self._read_ahead(ahead, rest)
        table = TopTable()
        slots = np.array([table.add(batch.top_k)], np.intp)
        one = QueryBatch(slots, batch.vectors[query : query + 1])
        for pages in as_completed(wanted):
            scoring = Scoring(pages.result(), np.zeros(1, np.intp))
            found, _ = scan([scoring], one, table.floors(slots), table.top_ks(slots))
            table.merge([found])
        return Answer(
            query=query,
            rows=table.best(int(slots[0])).rows,
            hits=hits,
            read_bytes=read_bytes,
            own_us=round((time.perf_counter() - began_s) * 1e6),
        )

    def _read_ahead(self, ahead: list[int], kept: Collection[int]) -> None:
        spared = {*kept, *ahead} if kept else ()
        for cluster in ahead:
            if cluster in self.cache.held:
                continue
            if not self.cache.begin(cluster, spared):
                return
            self.bytes_read += self._index.extents[cluster].size_bytes
            self.prefetched_bytes += self._index.extents[cluster].size_bytes
