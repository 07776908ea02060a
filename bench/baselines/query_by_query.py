"""One query after the other, in the order of the groups (CaGR-RAG, Alg. 1 step 4): the published
way, and the baseline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from contextlib import closing

import numpy as np

from bench.baselines.cluster_cache import Arrival, ClusterCache
from bench.baselines.read_steps import uncut
from carpool.clock import Clock
from schemas.record import ClusterId
from schemas.retrieval import Probe
from searcher.events import EventLog
from searcher.executor import Finish, Search, SearchGroup, SearchResult
from searcher.plan.slices import SliceId
from searcher.scoring.flat import FlatKernel
from searcher.scoring.kernel import QueryBatch, Scoring
from searcher.scoring.scan import scan
from searcher.scoring.top_k import TopTable


class QueryByQuery:
    """Implements `Executor`: each cluster is scored as it arrives, for one query."""

    def __init__(self, cache: ClusterCache, clock: Clock, events: EventLog) -> None:
        self._cache = cache
        self._table = TopTable()
        self._kernel = FlatKernel()
        self._clock = clock
        self._events = events
        self._changed = threading.Condition()
        self._waiting: deque[SearchGroup] = deque()
        self._is_stopped = False

    def join(self, group: SearchGroup) -> None:
        """Takes in a group; see `Executor.join`."""
        with self._changed:
            self._waiting.append(group)
            self._changed.notify_all()

    def drop(self, keys: Collection[int]) -> None:
        """Not used: a benchmark drops nothing and sets no deadlines."""
        raise NotImplementedError

    def run(self, finish: Finish) -> None:
        """Searches group after group; see `Executor.run`. Raises the error of a failed read."""
        while (group := self._take()) is not None:
            clusters = tuple(uncut(search.clusters) for search in group.searches)
            self._cache.begin_group(clusters, uncut(group.next_query))
            try:
                for position, search in enumerate(group.searches):
                    found = self._find(position, search)
                    if self._is_stopped:
                        return
                    finish(search, found)
            finally:
                self._cache.end_group()

    def stop(self) -> None:
        """Ends the query in progress too; see `Executor.stop`."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._cache.stop()

    def check_integrity(self) -> None:
        """Checks the accounting of the cache; see `Executor.check_integrity`."""
        self._cache.check_integrity()

    def _take(self) -> SearchGroup | None:
        with self._changed:
            while not self._waiting and not self._is_stopped:
                self._changed.wait()
            return None if self._is_stopped else self._waiting.popleft()

    def _find(self, position: int, search: Search) -> SearchResult:
        started_us = now_us = self._clock.now_us()
        search_us = 0
        slot = self._table.add(search.top_k)
        arrivals: dict[ClusterId, Arrival] = {}
        with closing(self._cache.query(position, uncut(search.clusters))) as arriving:
            for arrival in arriving:
                arrived_us = self._clock.now_us()
                cluster = ClusterId(arrival.cluster)
                arrivals[cluster] = arrival
                self._score(cluster, search, slot)
                now_us = self._clock.now_us()
                search_us += now_us - arrived_us
                self._events.scored(cluster, arrived_us, now_us)
        best = self._table.best(slot)
        self._table.remove(slot)
        ended_us = self._clock.now_us()
        search_us += ended_us - now_us
        return SearchResult(
            best=best,
            probes=tuple(
                Probe(cluster=c, tier=arrivals[c].tier) for c in search.clusters if c in arrivals
            ),
            skipped=(),
            errors=(),
            bytes_read=self._cache.query_read_bytes(),
            started_us=started_us,
            load_us=ended_us - started_us - search_us,
            search_us=search_us,
        )

    def _score(self, cluster: ClusterId, search: Search, slot: int) -> None:
        batch = QueryBatch(np.array([slot], np.intp), search.vector[None, :])
        scorings = [Scoring(self._cache.pages(SliceId(cluster)), np.zeros(1, np.intp))]
        floors, top_ks = self._table.floors(batch.slots), self._table.top_ks(batch.slots)
        candidates, _ = scan(self._kernel, scorings, batch, floors, top_ks)
        self._table.merge([candidates])
