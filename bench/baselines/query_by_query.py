"""The baseline: one query after the other, in the order of the groups (CaGR-RAG, Alg. 1 step 4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from bench.baselines.cluster_cache import ClusterCache
from bench.baselines.edgerag import EdgeRag
from bench.baselines.read_planner import PrefetchMode, ReadLimits, ReadPlanner
from carpool.clock import Clock
from schemas.record import ClusterId
from schemas.retrieval import Probe, Tier
from searcher.build import PlaneParts
from searcher.events import EventLog
from searcher.executor import Executor, Finish, ScanResult, Search, SearchGroup, SearchResult
from searcher.plan.slices import SliceId
from searcher.scoring.scan import QueryBatch, Scoring, scan
from searcher.scoring.top_k import TopTable

DEMAND_READS_MAX = 32
"""Clusters that are read for a query at a time."""


class QueryByQuery:
    """Implements `Executor`: each cluster is scored as it arrives, for one query."""

    def __init__(self, cache: ClusterCache, clock: Clock, events: EventLog) -> None:
        self._cache = cache
        self._table = TopTable()
        self._clock = clock
        self._events = events
        self._waiting: deque[SearchGroup] = deque()
        self._is_stopped = False

    def join(self, group: SearchGroup) -> None:
        """Adds a group; see `Executor.join`."""
        self._waiting.append(group)
        self._cache.wake()

    def found_elsewhere(
        self, key: int, asked: Collection[ClusterId], found: ScanResult | None
    ) -> None:
        """Does nothing; see `Executor.found_elsewhere`."""

    def drop(self, keys: Collection[int]) -> None:
        """Not implemented: no benchmark drops a query."""
        raise NotImplementedError

    def run(self, finish: Finish) -> None:
        """Searches group after group; see `Executor.run`. Raises the error of a failed read."""
        while (group := self._take()) is not None:
            clusters = tuple(_slices(search.clusters) for search in group.searches)
            self._cache.begin_group(clusters, _slices(group.next_query))
            for search in group.searches:
                found = self._find(search)
                if self._is_stopped:
                    return
                finish(search, found)
            self._cache.end_group()

    def stop(self) -> None:
        """Ends the query in progress too; see `Executor.stop`."""
        self._is_stopped = True
        self._cache.stop()

    def check_integrity(self) -> None:
        """Checks the accounting of the cache; see `Executor.check_integrity`."""
        self._cache.check_integrity()

    def _take(self) -> SearchGroup | None:
        while not self._waiting and not self._is_stopped:
            self._cache.wait()
        return None if self._is_stopped else self._waiting.popleft()

    def _find(self, search: Search) -> SearchResult:
        started_us = now_us = self._clock.now_us()
        search_us = 0
        slot = self._table.add(search.top_k)
        tiers: dict[ClusterId, Tier] = {}
        for slice_id, tier in self._cache.query(_slices(search.clusters)):
            arrived_us = self._clock.now_us()
            cluster = ClusterId(slice_id)
            tiers[cluster] = tier
            self._score(slice_id, search, slot)
            now_us = self._clock.now_us()
            search_us += now_us - arrived_us
            self._events.scored(cluster, arrived_us, now_us)
        best = self._table.best(slot)
        self._table.remove(slot)
        ended_us = self._clock.now_us()
        search_us += ended_us - now_us
        return SearchResult(
            best=best,
            probes=tuple(Probe(cluster=c, tier=tiers[c]) for c in search.clusters if c in tiers),
            skipped=(),
            errors=(),
            bytes_read=self._cache.query_read_bytes(),
            started_us=started_us,
            load_us=ended_us - started_us - search_us,
            search_us=search_us,
        )

    def _score(self, cluster: SliceId, search: Search, slot: int) -> None:
        batch = QueryBatch(np.array([slot], np.intp), search.vector[None, :])
        scorings = [Scoring(self._cache.pages(cluster), np.zeros(1, np.intp))]
        floors, top_ks = self._table.floors(batch.slots), self._table.top_ks(batch.slots)
        candidates, _ = scan(scorings, batch, floors, top_ks)
        self._table.merge([candidates])


def query_by_query(
    prefetch: PrefetchMode, read_latencies_us: Mapping[SliceId, int]
) -> Callable[[PlaneParts], Executor]:
    """Returns the `executor` of `open_exact_plane` that searches one query after the other.

    It evicts as EdgeRAG does, by these times to read a cluster. The options must not cut clusters
    (`slice_bytes_max` 0).
    """

    def make(parts: PlaneParts) -> Executor:
        limits = ReadLimits(
            budget_bytes=parts.memory.arena_bytes_total,
            demand_reads_max=DEMAND_READS_MAX,
            prefetch_reads_max=parts.options.ahead_max,
            prefetch=prefetch,
        )
        policy = EdgeRag(read_latencies_us)
        planner = ReadPlanner(limits, parts.size_bytes(), policy)
        cache = ClusterCache(
            memory=parts.memory, planner=planner, waker=parts.waker, metrics=parts.metrics
        )
        return QueryByQuery(cache, parts.clock, parts.events)

    return make


def _slices(clusters: Iterable[ClusterId]) -> tuple[SliceId, ...]:
    """The slices of clusters that are not cut: slice n is cluster n."""
    return tuple(map(SliceId, clusters))
