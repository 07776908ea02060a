"""Searches as the program of CaGR-RAG's section 2.2 is written: load cluster after cluster, then
search all of them at once.
"""

from __future__ import annotations

import queue
from collections.abc import Collection, Set

import numpy as np

from bench.baselines.read_planner import PrefetchMode, ReadLimits, ReadPlanner
from bench.baselines.read_steps import (
    Action,
    Event,
    Evict,
    Grant,
    GroupBegan,
    GroupEnded,
    PrefetchEnded,
    QueryBegan,
    QueryEnded,
    Read,
    ReadEnded,
)
from carpool.clock import Clock
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from schemas.retrieval import Probe, Tier
from searcher.events import EventLog
from searcher.executor import Finish, Search, SearchGroup, SearchResult
from searcher.memory.cluster_memory import ClusterMemory
from searcher.plan.eviction.edgerag import EdgeRag
from searcher.scoring.pool import ScoringPool
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import TopTable

Ended = queue.SimpleQueue[ClusterId | None]
"""The clusters whose reads have ended, well or not, told by an `EventLog`; None: look whether all
is to stop.
"""


class PrefetchingEdgeRag(EdgeRag):
    """EdgeRAG's policy, which never evicts what is `held`: the clusters of the query that is being
    prefetched for.

    After the prefetch the cache holds all of them (CaGR-RAG, Alg. 1, line 37). The plain policy
    does not see to that: what was never asked for is worth nothing to it, so that one prefetched
    cluster would push out the other.
    """

    held: frozenset[ClusterId] = frozenset()

    def victim(self, protected: Set[ClusterId]) -> ClusterId | None:
        """Returns the cluster of least value that is neither protected nor held; the lower id of
        equals.
        """
        return super().victim(protected | self.held)


def one_after_the_other(
    memory: ClusterMemory, policy: PrefetchingEdgeRag, nlist: int, prefetch: PrefetchMode
) -> ReadPlanner:
    """Returns the planner that query by query has, which here lets one cluster be read at a
    time.
    """
    limits = ReadLimits(
        budget_bytes=memory.arena_bytes_total,
        demand_reads_max=1,
        prefetch_reads_max=1,
        prefetch=prefetch,
    )
    size_bytes = {cluster: memory.arena_bytes(cluster) for cluster in map(ClusterId, range(nlist))}
    return ReadPlanner(limits, size_bytes, policy)


class LoadThenScanExecutor:
    """Implements `Executor` for the bench, which sets no deadlines. All but `join`, `drop` and
    `stop` is on the search thread.

    A query holds what it was given until it is over, so all its clusters must fit into `memory`
    together: see to that before. `planner` lets one cluster be read at a time, and evicts by
    `policy`; `memory` works for no other, and tells `ended`.
    """

    def __init__(
        self,
        *,
        memory: ClusterMemory,
        planner: ReadPlanner,
        policy: PrefetchingEdgeRag,
        pool: ScoringPool,
        ended: Ended,
        metrics: Metrics,
        clock: Clock,
        events: EventLog,
    ) -> None:
        self._memory = memory
        self._planner = planner
        self._policy = policy
        self._pool = pool
        self._ended = ended
        self._metrics = metrics
        self._clock = clock
        self._events = events
        self._table = TopTable()
        self._joined: queue.SimpleQueue[SearchGroup | None] = queue.SimpleQueue()
        self._dropped: set[int] = set()
        self._tiers: dict[ClusterId, Tier] = {}  # of the clusters that the current query was given
        self._is_stopped = False

    def join(self, group: SearchGroup) -> None:
        """Takes in a group; see `Executor.join`."""
        self._joined.put(group)

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches that have not begun; see `Executor.drop`."""
        self._dropped.update(keys)

    def run(self, finish: Finish) -> None:
        """Searches group after group, and prefetches between them; see `Executor.run`.

        Raises `RetryableError` where a cluster could not be read: a run without it would be
        compared with runs that have it.
        """
        while (group := self._joined.get()) is not None:
            self._tell(
                GroupBegan(
                    queries=tuple(search.clusters for search in group.searches),
                    next_query=group.next_query,
                )
            )
            for position, search in enumerate(group.searches):
                if search.key in self._dropped:
                    self._dropped.remove(search.key)
                elif (found := self._find(position, search)) is not None:
                    finish(search, found)
                else:
                    return
            if not self._end_group(group.next_query):
                return

    def stop(self) -> None:
        """Ends the query in hand too; see `Executor.stop`."""
        self._is_stopped = True
        self._joined.put(None)
        self._ended.put(None)

    def check_integrity(self) -> None:
        """Checks the planner's books against the memory; see `Executor.check_integrity`."""
        self._planner.check_integrity()
        self._memory.check_integrity()
        assert self._memory.residents() == self._planner.residents()

    def _find(self, position: int, search: Search) -> SearchResult | None:
        """Loads what the query lacks, then searches; None: stopped meanwhile."""
        started_us = self._clock.now_us()
        self._tiers.clear()
        self._tell(QueryBegan(position=position))
        if not self._load():
            return None
        assert self._tiers.keys() == set(search.clusters), (
            "the query's clusters do not fit into memory together"
        )
        loaded_us = self._clock.now_us()
        slot = self._table.add(search.top_k)
        asked, only = (
            QueryBatch(np.array([slot], np.intp), search.vector[None, :]),
            np.zeros(1, np.intp),
        )
        scorings = [Scoring(self._memory.pages(cluster), only) for cluster in search.clusters]
        self._table.merge(self._pool.run(scorings, asked, self._table))
        best = self._table.best(slot)
        self._table.remove(slot)
        del scorings  # no view outlives what the planner may evict
        ended_us = self._clock.now_us()
        for cluster in search.clusters:
            self._events.scored(cluster, loaded_us, ended_us)
        self._tell(QueryEnded())
        return SearchResult(
            best=best,
            probes=tuple(
                Probe(cluster=cluster, tier=self._tiers[cluster]) for cluster in search.clusters
            ),
            skipped=(),
            errors=(),
            bytes_read=sum(
                self._memory.read_bytes(cluster)
                for cluster, tier in self._tiers.items()
                if tier == "ssd"
            ),
            started_us=started_us,
            load_us=loaded_us - started_us,
            search_us=ended_us - loaded_us,
        )

    def _end_group(self, next_query: tuple[ClusterId, ...]) -> bool:
        """Prefetches, where the planner is to (CaGR-RAG, Alg. 1, lines 35-37); False: stopped
        meanwhile.
        """
        self._policy.held = frozenset(next_query)
        self._tell(GroupEnded())
        is_loaded = self._load()
        self._policy.held = frozenset()
        return is_loaded

    def _load(self) -> bool:
        """Waits for the read under way and, one after the other, those that follow it; False:
        stopped meanwhile.
        """
        while self._planner.reading_bytes:
            cluster = self._ended.get()
            if self._is_stopped:
                return False
            assert cluster is not None
            if cluster not in self._memory.residents():
                raise RetryableError(
                    f"cluster {cluster} could not be read, so this contestant has no result; the "
                    "log says why. Check the disk "
                    "and the index (carpool index verify), and run it again"
                )
            self._tell(ReadEnded(cluster=cluster))
        return not self._is_stopped

    def _tell(self, event: Event) -> None:
        for action in self._planner.step(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Evict():
                self._memory.evict(action.cluster)
                self._metrics.searcher.evictions.inc()
            case Read():
                self._memory.begin_read(action.cluster, is_prefetch=action.purpose == "prefetch")
            case Grant():
                self._metrics.searcher.cluster_requests.labels(tier=action.tier).inc()
                self._tiers[action.cluster] = action.tier
            case PrefetchEnded():
                self._metrics.searcher.prefetches.labels(result=action.result).inc()
            case _:
                raise AssertionError(f"{action}: no read fails here, and every query fits")
