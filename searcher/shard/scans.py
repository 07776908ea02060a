"""Scans of the hot shard for an executor: one batch at a time, on a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from carpool.arrays import Float32, Int64
from carpool.clock import Clock
from carpool.codes.row_mask import RowMask
from schemas.record import ClusterId
from searcher.shard.hot_shard import CLOSE_TIMEOUT_S, HotShard

BATCH_MAX = 64
"""Queries of a batch. More: the first answers come later. Fewer: more scans."""
TIMEOUT_US = 1_000_000
"""A scan of a GPU takes milliseconds. After this time the device counts as lost."""
RAM_TIMEOUT_US = 30_000_000
"""The same in memory, where scans share the cores with all other work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanTask:
    """The query `key` is to be scanned over `clusters`; `count`: rows to propose."""

    key: int
    vector: Float32
    clusters: tuple[ClusterId, ...]
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Scanned:
    """A scan has ended, or failed.

    `rows` and `estimates`: (len(tasks), n), best first; a row is -1 where there are fewer.
    """

    tasks: tuple[ScanTask, ...]
    rows: Int64
    estimates: Float32
    took_us: int
    error: Exception | None = None


_Batch = tuple[tuple[ScanTask, ...], RowMask | None]


class ShardScans:
    """Collects tasks while a batch is scanned, and then scans them. For the search thread."""

    def __init__(self, shard: HotShard, ended: Callable[[Scanned], None], clock: Clock) -> None:
        """`ended` is called on the thread of the scans."""
        self.shard = shard
        self._ended = ended
        self._clock = clock
        self._waiting: deque[ScanTask] = deque()
        self._in_progress: tuple[ScanTask, ...] = ()
        self._began_us = 0
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def times_out_at_us(self) -> int | None:
        """When the device counts as lost; None while nothing is scanned."""
        return self._began_us + self._timeout_us if self._in_progress else None

    @property
    def _timeout_us(self) -> int:
        return TIMEOUT_US if self.shard.tier == "gpu" else RAM_TIMEOUT_US

    def add(self, task: ScanTask) -> None:
        """Adds a task; its clusters, which are pinned, are released when it was scanned."""
        self._waiting.append(task)

    def start(self, mask: RowMask | None = None) -> int:
        """Begins a batch of what waits, if none is in progress; returns how many queries it has.

        `mask`: the rows that may be found; None: all.
        """
        if not self._waiting or self._in_progress or not self.shard.is_open:
            return 0
        batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
        self._in_progress = tuple(batch)
        self._began_us = self._clock.now_us()
        self._batches.put((self._in_progress, mask))
        if self._thread is None:
            self._thread = threading.Thread(target=self._scan, name="shard-scans", daemon=True)
            self._thread.start()
        return len(batch)

    def end(self, scanned: Scanned) -> bool:
        """A batch has ended; returns False where it has failed, or was given up before."""
        if scanned.error is not None:
            self.shard.fail(scanned.error)
            return False
        if scanned.tasks is not self._in_progress:
            return False
        self._in_progress = ()
        for task in scanned.tasks:
            self.shard.release(task.clusters)
        return True

    def lost(self) -> tuple[ScanTask, ...]:
        """Returns the tasks that must be scanned elsewhere, because the shard has failed."""
        due_us = self.times_out_at_us
        if due_us is not None and self._clock.now_us() >= due_us:
            self.shard.fail(f"a scan has not ended after {self._timeout_us // 1_000} ms")
        if self.shard.is_open:
            return ()
        tasks = (*self._in_progress, *self._waiting)
        self._in_progress = ()
        self._waiting.clear()
        return tasks

    def close(self) -> None:
        """Ends the thread, after the batch in progress. Blocks for up to half a second."""
        self._batches.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _scan(self) -> None:
        while (batch := self._batches.get()) is not None:
            tasks, mask = batch
            began_us = self._clock.now_us()
            rows, estimates, error = np.empty((0, 0), np.int64), np.empty((0, 0), np.float32), None
            try:
                rows, estimates = self.shard.scan(
                    np.stack([task.vector for task in tasks]),
                    [np.array(task.clusters, np.int64) for task in tasks],
                    max(task.count for task in tasks),
                    mask,
                )
            except Exception as caught:  # of the device: whatever it is, searches go on without it
                error = caught
            took_us = self._clock.now_us() - began_us
            self._ended(
                Scanned(tasks=tasks, rows=rows, estimates=estimates, took_us=took_us, error=error)
            )
