"""The cluster cache: does what the planner of reads decides; owns the buffers, the reader threads and the lock.

One thread searches (`begin_group` to `end_group`), any thread may tell what comes next, reader threads report back. The
lock is held for bookkeeping only, never across a read or a scoring.
"""

from __future__ import annotations

import mmap
import queue
import threading
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import structlog

from carpool.clock import Clock
from carpool.disk.segment import ClusterExtent, ClusterRows, decode_cluster
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.policy import CachePolicy
from searcher.events import EventLog
from searcher.plan.reads import ReadLimits, ReadPlanner
from searcher.plan.steps import (
    Action,
    Deny,
    Event,
    Evict,
    FoundIn,
    Grant,
    GroupBegan,
    GroupEnded,
    NextChanged,
    PrefetchEnded,
    Purpose,
    QueryBegan,
    QueryEnded,
    Read,
    ReadEnded,
    ReadFailed,
    Released,
)
from searcher.store.reader import ClusterReader, allocate_pages

_log = structlog.get_logger(__name__)

ReadError = CorruptionError | RetryableError


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A cluster that the current query may score now, or (`error` set) will not get. Holds no bytes of the cluster."""

    cluster: ClusterId
    tier: FoundIn
    error: ReadError | None = None


@dataclass(kw_only=True, slots=True)
class _Job:
    """One read. The thread that does it keeps its buffer here, so that no stack frame holds a view when it is done."""

    extent: ClusterExtent
    purpose: Purpose
    rows: ClusterRows | None = None
    error: ReadError | None = None


class ClusterCache:
    """Clusters in memory within a byte budget, read on demand and ahead.

    `extents` are indexed by cluster, `path` names their file in errors. The reader is not closed here.
    """

    def __init__(
        self,
        *,
        reader: ClusterReader,
        extents: tuple[ClusterExtent, ...],
        dimension: int,
        path: str,
        policy: CachePolicy,
        limits: ReadLimits,
        read_attempts: int,
        metrics: Metrics,
        clock: Clock,
        events: EventLog,
    ) -> None:
        """Starts the reader threads: one for each read that the limits allow."""
        self._reader = reader
        self._extents = extents
        self._dimension = dimension
        self._path = path
        self._read_attempts = read_attempts
        self._metrics = metrics
        self._clock = clock
        self._events = events
        sizes: Mapping[ClusterId, int] = {ClusterId(extent.cluster): extent.size_bytes for extent in extents}
        self._changed = threading.Condition()
        self._planner = ReadPlanner(limits, sizes, policy)
        self._rows: dict[ClusterId, ClusterRows] = {}
        self._arrivals: deque[Arrival] = deque()
        self._expected = 0
        self._query_read_bytes = 0
        self._closed = False
        self._errors: dict[ClusterId, ReadError] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        metrics.budget_bytes.set(limits.budget_bytes)
        self._resident_gauge = metrics.resident_bytes.labels(kind="resident")
        self._in_flight_gauge = metrics.resident_bytes.labels(kind="in_flight")
        self._pinned_gauge = metrics.resident_bytes.labels(kind="pinned")
        count = limits.demand_reads_max + limits.prefetch_reads_max
        self._threads = [
            threading.Thread(target=self._read_jobs, name=f"reader-{n}", daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    # ---- what the search thread calls, in this order

    def begin_group(self, queries: tuple[tuple[ClusterId, ...], ...], next_query: tuple[ClusterId, ...]) -> None:
        """A group is searched from now on; see `GroupBegan`."""
        self._tell(GroupBegan(queries=queries, next_query=next_query))

    def query(self, position: int, clusters: tuple[ClusterId, ...]) -> Generator[Arrival, None, None]:
        """Yields every cluster of the query at `position` of the group, as it is there, resident ones first. Blocks.

        The caller scores what it is given (`rows`) and goes on, which releases it: no view may outlive that. Ends early
        only when the cache is closed. `clusters` are those told to `begin_group`.
        """
        with self._changed:
            self._arrivals.clear()
            self._expected = len(set(clusters))
            self._query_read_bytes = 0
        self._tell(QueryBegan(position=position))
        try:
            while (arrival := self._next_arrival()) is not None:
                yield arrival
                if arrival.error is None:
                    self._tell(Released(cluster=arrival.cluster))
        finally:
            with self._changed:
                self._arrivals.clear()
            self._tell(QueryEnded())

    def rows(self, cluster: ClusterId) -> ClusterRows:
        """Returns views of a cluster that the current query was given and has not released."""
        with self._changed:
            return self._rows[cluster]

    def query_read_bytes(self) -> int:
        """Returns the bytes that were read because the current or last query lacked them."""
        with self._changed:
            return self._query_read_bytes

    def end_group(self) -> None:
        """The group has passed."""
        self._tell(GroupEnded())

    # ---- what any thread calls

    def next_changed(self, clusters: tuple[ClusterId, ...]) -> None:
        """Says which clusters the first query of the next group wants; advice. Does not block."""
        self._tell(NextChanged(clusters=clusters))

    def check_integrity(self) -> None:
        """Raises `AssertionError` where books and buffers differ."""
        with self._changed:
            self._planner.check_integrity()
            assert self._rows.keys() == self._planner.residents()
            held = sum(self._extents[cluster].size_bytes for cluster in self._rows)
            assert held + self._planner.reading_bytes == self._planner.used_bytes

    def stop(self) -> None:
        """Ends a query that waits, and each reader thread after the read that it is at. Does not block."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for _ in self._threads:
            self._jobs.put(None)

    def close(self, timeout_s: float = 0.5) -> bool:
        """Stops, and waits for the reader threads for up to `timeout_s`.

        Returns whether all have ended: until then the reader must not be closed.
        """
        self.stop()
        until_us = self._clock_us_after(timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, (until_us - self._clock.now_us()) / 1_000_000))
        return not any(thread.is_alive() for thread in self._threads)

    def _clock_us_after(self, seconds: float) -> int:
        return self._clock.now_us() + int(seconds * 1_000_000)

    # ---- doing what the planner says

    def _next_arrival(self) -> Arrival | None:
        with self._changed:
            if not self._expected:
                return None
            while not self._arrivals and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._expected -= 1
            return self._arrivals.popleft()

    def _tell(self, event: Event) -> None:
        with self._changed:
            if self._closed:
                return
            for action in self._planner.step(event):
                self._do(action)
            self._show()

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                extent = self._extents[action.cluster]
                if action.purpose == "demand":
                    self._query_read_bytes += extent.size_bytes
                self._jobs.put(_Job(extent=extent, purpose=action.purpose))
            case Evict():
                del self._rows[action.cluster]
                self._metrics.evictions.inc()
            case Grant():
                self._metrics.cluster_requests.labels(tier=action.tier).inc()
                self._arrive(Arrival(cluster=action.cluster, tier=action.tier))
            case Deny():
                self._metrics.cluster_requests.labels(tier="ssd").inc()
                self._arrive(Arrival(cluster=action.cluster, tier="ssd", error=self._errors[action.cluster]))
            case PrefetchEnded():
                self._metrics.prefetches.labels(result=action.result).inc()

    def _arrive(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._changed.notify_all()

    def _show(self) -> None:
        reading_bytes = self._planner.reading_bytes
        self._resident_gauge.set(self._planner.used_bytes - reading_bytes)
        self._in_flight_gauge.set(reading_bytes)
        self._pinned_gauge.set(self._planner.pinned_bytes)

    # ---- the reader threads

    def _read_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            started_us = self._clock.now_us()
            self._read(job)
            ended_us = self._clock.now_us()
            self._events.read(ClusterId(job.extent.cluster), job.purpose, started_us, ended_us)
            self._hand_over(job)
            del job  # while this thread waits for the next one, it must hold no buffer

    def _read(self, job: _Job) -> None:
        """Reads, tries again after I/O errors, and checks; leaves rows or error in the job, and never raises.

        The error that is left is a new one: the traceback of the one that was raised holds the buffer.
        """
        cluster = job.extent.cluster
        try:
            pages = allocate_pages(job.extent.size_bytes)
            self._fill(job.extent, pages)
            job.rows = decode_cluster(pages, job.extent, self._dimension, path=self._path)
        except CorruptionError as error:
            self._metrics.clusters_damaged.inc()
            _log.error("cluster damaged", cluster=cluster, error=str(error))
            job.error = CorruptionError(str(error), path=error.path, offset_bytes=error.offset_bytes)
        except RetryableError as error:
            job.error = RetryableError(str(error))
        except Exception as error:  # also a fault of our own must not leave a query waiting for ever
            _log.exception("read broke", cluster=cluster)
            job.error = RetryableError(f"cluster {cluster} could not be read: {error!r}")

    def _fill(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        for attempt in range(1, self._read_attempts + 1):
            try:
                return self._reader.read_into(extent, pages)
            except RetryableError as error:
                _log.warning("read failed", cluster=extent.cluster, attempt=attempt, error=str(error))
                if attempt == self._read_attempts:
                    raise

    def _hand_over(self, job: _Job) -> None:
        cluster = ClusterId(job.extent.cluster)
        with self._changed:
            if job.rows is not None:
                self._rows[cluster], job.rows, job.error = job.rows, None, None
                self._metrics.bytes_read.labels(purpose=job.purpose).inc(job.extent.size_bytes)
                self._tell(ReadEnded(cluster=cluster))
            else:
                assert job.error is not None
                self._errors[cluster] = job.error
                self._tell(ReadFailed(cluster=cluster))
                del self._errors[cluster]
