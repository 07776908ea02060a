"""The cluster cache: does what the planner of reads decides, for one query at a time.

One thread searches and takes the ends of reads, whenever it wants the next cluster. The kernel
reads meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from bench.baselines.read_planner import ReadPlanner
from bench.baselines.read_steps import (
    Action,
    Event,
    Evict,
    Grant,
    GroupBegan,
    GroupEnded,
    QueryBegan,
    Read,
    ReadEnded,
    Released,
)
from carpool.disk.pages import ClusterPages
from carpool.telemetry.metrics import Metrics
from schemas.retrieval import Tier
from searcher.executor import ReadError
from searcher.memory.cluster_memory import ClusterMemory
from searcher.memory.slice_reads import ReadBroke, ReadDone
from searcher.plan.slices import SliceId
from searcher.store.waker import Waker

WAIT_S_MAX = 60.0
POLL_S = 0.1
"""While reads are in progress: a read that hangs is noticed so much late."""


class Arrival(NamedTuple):
    """A cluster that the current query may score now, and where it was found."""

    cluster: SliceId
    tier: Tier


class ClusterCache:
    """Clusters in memory within a byte budget, read on demand and ahead. For one thread.

    `planner` knows the clusters of `memory`; `waker` is that of `memory`.
    """

    def __init__(
        self, *, memory: ClusterMemory, planner: ReadPlanner, waker: Waker, metrics: Metrics
    ) -> None:
        self._memory = memory
        self._planner = planner
        self._waker = waker
        self._requests = metrics.searcher.cluster_requests
        self._arrivals: deque[Arrival] = deque()
        self._query_read_bytes = 0
        self._is_stopped = False
        self._failure: ReadError | None = None

    def begin_group(
        self, queries: tuple[tuple[SliceId, ...], ...], next_query: tuple[SliceId, ...]
    ) -> None:
        """Begins a group; see `GroupBegan`."""
        self._tell(GroupBegan(queries=queries, next_query=next_query))
        self._advance()

    def query(self, clusters: tuple[SliceId, ...]) -> Iterator[Arrival]:
        """Yields every cluster of the group's next query as it arrives, resident ones first.

        `clusters` are those given to `begin_group`. Blocks. A cluster is released when the next one
        is asked for: no view of its pages may outlive that. Ends early only after `stop`. Raises
        the error of a read that failed.
        """
        self._query_read_bytes = 0
        self._tell(QueryBegan())
        for cluster in clusters:
            self._memory.promote(cluster)  # a read ahead in flight is now a demand
        self._advance()
        for _ in clusters:
            arrival = self._next_arrival()
            if arrival is None:
                return
            yield arrival
            self._tell(Released(cluster=arrival.cluster))
            self._advance()

    def pages(self, cluster: SliceId) -> ClusterPages:
        """Returns views of a cluster that was yielded to the current query and not released."""
        return self._memory.pages(cluster)

    def query_read_bytes(self) -> int:
        """Returns the bytes that were read because the current or last query lacked them."""
        return self._query_read_bytes

    def end_group(self) -> None:
        """Ends the group; all of its queries were searched."""
        self._tell(GroupEnded())
        self._advance()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the planner and the memory disagree."""
        self._planner.check_integrity()
        self._memory.check_integrity()
        assert self._memory.residents() >= self._planner.residents()
        assert self._memory.used_bytes <= self._planner.used_bytes

    def is_reading(self) -> bool:
        """Whether a cluster is being read."""
        return self._planner.reading_bytes > 0 and not (self._is_stopped or self._failure)

    def wait(self) -> None:
        """Takes the reads that have ended; where none has, blocks until one does, or `wake`."""
        if not self._advance():
            is_idle = self._memory.times_out_at_us is None
            self._waker.wait(WAIT_S_MAX if is_idle else POLL_S)

    def wake(self) -> None:
        """Ends the current `wait`, or the next. For any thread."""
        self._waker.wake()

    def stop(self) -> None:
        """Ends a query that waits, and all reading. Does not block. For any thread."""
        self._is_stopped = True
        self._waker.wake()

    def _next_arrival(self) -> Arrival | None:
        while not (self._arrivals or self._is_stopped or self._failure):
            self.wait()
        if self._failure is not None:
            raise self._failure
        return None if self._is_stopped else self._arrivals.popleft()

    def _tell(self, event: Event) -> None:
        if self._is_stopped:
            return
        for action in self._planner.step(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                if action.purpose == "demand":
                    self._query_read_bytes += self._memory.read_bytes(action.cluster)
                self._memory.begin_read(action.cluster, is_prefetch=action.purpose == "prefetch")
            case Evict():
                self._memory.evict(action.cluster)
            case Grant():
                self._requests.labels(tier=action.tier).inc()
                self._arrivals.append(Arrival(action.cluster, action.tier))

    def _advance(self) -> bool:
        """Starts reads, and takes those that have ended; returns whether there were any."""
        has_ended = False
        while events := self._memory.advance():
            has_ended = True
            for event in events:
                match event:
                    case ReadDone():
                        self._tell(ReadEnded(cluster=event.slice_id))
                    case ReadBroke():
                        self._failure = event.error
        return has_ended
