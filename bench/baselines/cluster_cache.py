"""The cluster cache: does what the planner of reads decides, for one query at a time; owns the lock
of the planner.

One thread searches (`begin_group` to `end_group`), any thread may tell what comes next, the
engine's threads report back. The lock is held for bookkeeping only, never across a read or a
scoring.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from bench.baselines.read_planner import ReadPlanner
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
    Released,
)
from carpool.disk.pages import ClusterPages
from carpool.telemetry.metrics import Metrics
from schemas.retrieval import Tier
from searcher.executor import ReadError
from searcher.memory.cluster_memory import ClusterMemory, MemoryEvent, ReadBroke, ReadDone
from searcher.plan.slices import SliceId
from searcher.store.engine import CancelledRead


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A cluster that the current query may score now."""

    cluster: SliceId
    tier: Tier


class ClusterCache:
    """Clusters in memory within a byte budget, read on demand and ahead.

    `planner` knows the same clusters by the bytes that they take in `memory`, which it starts and
    does not close.
    """

    def __init__(self, *, memory: ClusterMemory, planner: ReadPlanner, metrics: Metrics) -> None:
        self._memory = memory
        self._planner = planner
        self._metrics = metrics
        self._changed = threading.Condition()
        self._arrivals: deque[Arrival] = deque()
        self._expected = 0
        self._query_read_bytes = 0
        self._is_stopped = False
        self._failure: ReadError | None = None
        self._pinned_gauge = metrics.searcher.resident_bytes.labels(kind="pinned")
        memory.start(self._hear)

    # ---- what the search thread calls, in this order

    def begin_group(
        self,
        queries: tuple[tuple[SliceId, ...], ...],
        next_query: tuple[SliceId, ...],
    ) -> None:
        """A group is searched from now on; see `GroupBegan`."""
        self._tell(GroupBegan(queries=queries, next_query=next_query))

    def query(self, position: int, clusters: tuple[SliceId, ...]) -> Generator[Arrival, None, None]:
        """Yields every cluster of the query at `position` of the group, as it is there, resident
        ones first. Blocks.

        The caller scores what it is given (`pages`) and goes on, which releases it: no view may
        outlive that. Ends early only when the cache is stopped. `clusters` are those told to
        `begin_group`.
        """
        with self._changed:
            self._arrivals.clear()
            self._expected = len(set(clusters))
            self._query_read_bytes = 0
        self._tell(QueryBegan(position=position))
        for cluster in clusters:
            self._memory.promote(cluster)  # what was being read ahead is waited for now
        try:
            while (arrival := self._next_arrival()) is not None:
                yield arrival
                self._tell(Released(cluster=arrival.cluster))
        finally:
            with self._changed:
                self._arrivals.clear()
            self._tell(QueryEnded())

    def pages(self, cluster: SliceId) -> ClusterPages:
        """Returns views of a cluster that the current query was given and has not released."""
        return self._memory.pages(cluster)

    def query_read_bytes(self) -> int:
        """Returns the bytes that were read because the current or last query lacked them."""
        with self._changed:
            return self._query_read_bytes

    def end_group(self) -> None:
        """The group has passed."""
        self._tell(GroupEnded())

    # ---- what any thread calls

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the planner's books and the memory differ by more than what
        was not told yet.
        """
        with self._changed:
            self._planner.check_integrity()
            self._memory.check_integrity()
            assert self._memory.residents() >= self._planner.residents()
            assert self._memory.used_bytes <= self._planner.used_bytes

    def is_reading(self) -> bool:
        """Whether a cluster is being read."""
        with self._changed:
            return self._planner.reading_bytes > 0 and not (self._is_stopped or self._failure)

    def stop(self) -> None:
        """Ends a query that waits; nothing is read from now on. Does not block."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    # ---- doing what the planner says

    def _next_arrival(self) -> Arrival | None:
        with self._changed:
            if not self._expected:
                return None
            while not (self._arrivals or self._is_stopped or self._failure):
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            if self._is_stopped:
                return None
            self._expected -= 1
            return self._arrivals.popleft()

    def _tell(self, event: Event) -> None:
        with self._changed:
            if self._is_stopped:
                return
            for action in self._planner.step(event):
                self._do(action)
            self._pinned_gauge.set(self._planner.pinned_bytes)

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                if action.purpose == "demand":
                    self._query_read_bytes += self._memory.read_bytes(action.cluster)
                self._memory.begin_read(action.cluster, is_prefetch=action.purpose == "prefetch")
            case Evict():
                self._memory.evict(action.cluster)
                self._metrics.searcher.evictions.inc()
            case Grant():
                self._metrics.searcher.cluster_requests.labels(tier=action.tier).inc()
                self._arrive(Arrival(cluster=action.cluster, tier=action.tier))
            case PrefetchEnded():
                self._metrics.searcher.prefetches.labels(result=action.result).inc()

    def _arrive(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._changed.notify_all()

    # ---- the engine's threads

    def _hear(self, event: MemoryEvent) -> None:
        match event:
            case ReadDone():
                self._tell(ReadEnded(cluster=event.slice_id))
            case ReadBroke():
                assert not isinstance(event.error, CancelledRead), "nothing here cancels a read"
                with self._changed:
                    self._failure = event.error
                    self._changed.notify_all()
            case _:
                pass  # the bytes of a read that failed came back: the run is over
