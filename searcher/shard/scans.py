"""The hot shard as a source of rows: it scans one batch at a time, on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from carpool.arrays import Float32, Int64
from carpool.clock import Clock
from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.executor import SearchGroup
from searcher.row_source import Scan, Scanned
from searcher.shard.hot_shard import CLOSE_TIMEOUT_S, HotShard
from searcher.store.waker import Waker

BATCH_MAX = 64
"""Queries of a batch. More: the first answers come later. Fewer: more scans."""
TIMEOUT_US = 1_000_000
"""A scan of a GPU takes milliseconds. After this time the device counts as lost."""
RAM_TIMEOUT_US = 30_000_000
"""The same in memory, where scans share the cores with all other work."""

NO_ROWS, NO_ESTIMATES = np.empty(0, np.int64), np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A batch has ended, or failed. `rows` and `estimates`: (len(batch), n)."""

    batch: tuple[Scan, ...]
    rows: Int64
    estimates: Float32
    took_us: int
    error: Exception | None = None


class ShardScans:
    """Implements `RowSource`: collects scans while a batch is scanned. The shard is the caller's.

    When the shard has failed, `advance` returns the clusters that it took as `lacking`.
    """

    def __init__(self, shard: HotShard, waker: Waker, clock: Clock) -> None:
        """`waker` is woken when a batch has ended."""
        self.codec = shard.codec
        self._shard = shard
        self._waker = waker
        self._clock = clock
        self._joined = 0  # queries since the last call of `advance`
        self._waiting: deque[Scan] = deque()
        self._in_progress: tuple[Scan, ...] = ()
        self._began_us = 0
        self._batches: queue.SimpleQueue[tuple[Scan, ...] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def times_out_at_us(self) -> int | None:
        """When the device counts as lost; None while nothing is scanned."""
        return self._began_us + self._timeout_us if self._in_progress else None

    @property
    def is_ready(self) -> bool:
        """False: `advance` leaves scans to a thread, which wakes; see `RowSource`."""
        return False

    @property
    def _timeout_us(self) -> int:
        return TIMEOUT_US if self._shard.tier == "gpu" else RAM_TIMEOUT_US

    def join(self, group: SearchGroup, *, begins_window: bool) -> None:
        """Counts the clusters that are probed; see `RowSource`."""
        self._joined += len(group.searches)
        self._shard.add_queries([search.clusters for search in group.searches])

    def take(self, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """Returns those that are in the shard, and pins them; see `RowSource`."""
        return self._shard.take(clusters)

    def scan(self, scan: Scan) -> Mapping[ClusterId, Tier]:
        """Adds a scan; its clusters, which are pinned, are released at its end."""
        self._waiting.append(scan)
        return dict.fromkeys(scan.clusters, self._shard.tier)

    def drop(self, key: int) -> None:
        """Does nothing: pins end with a scan; see `RowSource`."""

    def advance(self, *, may_scan: bool) -> Sequence[Scanned]:
        """Begins the next batch; see `RowSource`. It does so without `may_scan`, too.

        A part of a change of the shard may begin with it.
        """
        found = self._take_ended()
        due_us = self.times_out_at_us
        if due_us is not None and self._clock.now_us() >= due_us:
            self._shard.fail(f"a scan has not ended after {self._timeout_us // 1_000} ms")
        if not self._shard.is_open:
            lost = (*self._in_progress, *self._waiting)
            self._in_progress = ()
            self._waiting.clear()
            found += [
                Scanned(key=one.key, rows=NO_ROWS, estimates=NO_ESTIMATES, lacking=one.clusters)
                for one in lost
            ]
        elif self._waiting and not self._in_progress:
            self._start()
        joined, self._joined = self._joined, 0
        self._shard.begin_substages(joined)
        return found

    def check_integrity(self) -> None:
        """Does nothing; see `RowSource`. What is pinned: see `HotShard.check_integrity`."""

    def close(self) -> None:
        """Ends the thread, after the batch in progress. Blocks for up to half a second."""
        self._batches.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _start(self) -> None:
        """Begins a batch: the next scans that have the mask of the first one."""
        batch, mask = list[Scan](), self._waiting[0].mask
        while self._waiting and self._waiting[0].mask is mask and len(batch) < BATCH_MAX:
            batch.append(self._waiting.popleft())
        self._in_progress = tuple(batch)
        self._began_us = self._clock.now_us()
        self._batches.put(self._in_progress)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shard-scans", daemon=True)
            self._thread.start()

    def _take_ended(self) -> list[Scanned]:
        """Returns the scans of the batch that has ended; none where it was given up before."""
        found = list[Scanned]()
        while not self._ended.empty():
            ended = self._ended.get()
            if ended.error is not None:
                self._shard.fail(ended.error)
            elif ended.batch is self._in_progress:
                self._in_progress = ()
                share_us = ended.took_us // len(ended.batch)
                for one, rows, estimates in zip(
                    ended.batch, ended.rows, ended.estimates, strict=True
                ):
                    self._shard.release(one.clusters)
                    found.append(
                        Scanned(key=one.key, rows=rows, estimates=estimates, took_us=share_us)
                    )
        return found

    # ---- the thread that scans

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            began_us = self._clock.now_us()
            rows, estimates, error = np.empty((0, 0), np.int64), np.empty((0, 0), np.float32), None
            try:
                rows, estimates = self._shard.scan(
                    np.stack([one.vector for one in batch]),
                    [np.array(one.clusters, np.int64) for one in batch],
                    max(one.count for one in batch),
                    batch[0].mask,
                )
            except Exception as caught:  # of the device: whatever it is, searches go on without it
                error = caught
            took_us = self._clock.now_us() - began_us
            self._ended.put(_Ended(batch, rows, estimates, took_us, error))
            self._waker.wake()
