"""Which clusters are in the hot shard now, who uses them, and the thread that swaps them."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Collection, Sequence

import structlog

from carpool.arrays import Float32, Int64
from carpool.codes.row_mask import RowMask
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.plan.hot_swaps import QUERIES_A_SUBSTAGE, HotSwaps, Swaps
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.shard.device import ShardDevice, ShardFullError

_log = structlog.get_logger(__name__)


CLOSE_TIMEOUT_S = 0.5


class HotShard:
    """The clusters of a device. A thread loads and drops them; searches never wait for it.

    A query pins the clusters that it finds here, so that they stay until it has been scanned. A
    device that fails is not used any more. The search thread calls all methods but `scan`.
    """

    def __init__(
        self,
        device: ShardDevice,
        rows: ClusterRowsReader,
        swaps: HotSwaps,
        first_rows: Int64,
        metrics: Metrics,
        *,
        tier: Tier = "gpu",
    ) -> None:
        """Owns `device`, which is empty, and `rows`.

        `first_rows`: (nlist,) int64, the first row of each cluster. `tier`: where answers say that
        the clusters were.
        """
        self.tier = tier
        self._device = device
        self._rows = rows
        self._swaps = swaps
        self._first_rows = first_rows
        self._metrics = metrics.searcher
        self._lock = threading.Lock()
        self._unpinned = threading.Condition(self._lock)
        self._live: dict[ClusterId, int] = {}  # with the bytes of each
        self._pins: Counter[ClusterId] = Counter()
        self._is_open = True
        self._is_closing = False
        self._changes: list[tuple[ClusterId, bool]] = []  # that `HotSwaps` does not know yet
        self._orders: queue.SimpleQueue[Swaps | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._swap, name="shard-swaps", daemon=True)
        self._thread.start()

    @property
    def codec(self) -> str:
        """The codec whose margin holds for the estimates."""
        return self._device.codec

    @property
    def is_open(self) -> bool:
        """False after the device has failed."""
        return self._is_open

    @property
    def live(self) -> frozenset[ClusterId]:
        """The clusters that new queries find here."""
        with self._lock:
            return frozenset(self._live)

    # ---- the search thread

    def take(self, clusters: Collection[ClusterId]) -> tuple[ClusterId, ...]:
        """Returns those of `clusters` that are here, in their order, and pins them."""
        with self._lock:
            held = tuple(cluster for cluster in clusters if cluster in self._live)
            self._pins.update(held)
        return held

    def release(self, clusters: Collection[ClusterId]) -> None:
        """Ends a pin of each cluster."""
        with self._lock:
            self._pins.subtract(clusters)
            for cluster in clusters:
                if not self._pins[cluster]:
                    del self._pins[cluster]
            self._unpinned.notify_all()

    def add_queries(self, probes: Sequence[Sequence[ClusterId]]) -> None:
        """Counts the clusters that each query of a group probes."""
        self._swaps.add_queries(probes)
        live = self.live
        held = sum(cluster in live for clusters in probes for cluster in clusters)
        self._metrics.shard_probes.labels(side="shard").inc(held)
        self._metrics.shard_probes.labels(side="codes").inc(sum(map(len, probes)) - held)

    def begin_substages(self, queries: int) -> None:
        """So many queries came together. Begins swaps where they are due."""
        if not self._is_open:
            return
        with self._lock:
            changes, self._changes = self._changes, []
        for cluster, is_in in changes:
            (self._swaps.loaded if is_in else self._swaps.left)(cluster)
        for _ in range(0, queries, QUERIES_A_SUBSTAGE):
            if (swaps := self._swaps.substage()) is not None:
                self._orders.put(swaps)

    def fail(self, error: BaseException | str) -> None:
        """The device cannot be used any more: new queries find no cluster here."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._live.clear()
            self._unpinned.notify_all()
        self._metrics.shard_failed.set(1)
        self._metrics.shard_bytes.set(0)
        _log.error(
            "the hot shard has failed: its clusters are searched by their codes until this "
            "searcher is restarted",
            error=str(error),
        )

    def close(self) -> None:
        """Ends the thread and frees the device. Blocks for up to half a second."""
        with self._lock:
            self._is_closing = True
            self._unpinned.notify_all()
        self._orders.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._rows.close()
            self._device.close()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where a cluster is pinned, although no query is in hand."""
        with self._lock:
            assert not self._pins or not self._is_open, f"clusters are pinned: {self._pins}"

    # ---- the thread that scans

    def scan(
        self, queries: Float32, probes: Sequence[Int64], count: int, mask: RowMask | None
    ) -> tuple[Int64, Float32]:
        """Scans clusters that are pinned; see `ShardDevice.scan`."""
        return self._device.scan(queries, probes, count, mask)

    # ---- the thread that swaps

    def _swap(self) -> None:
        try:
            while (swaps := self._orders.get()) is not None and self._may_go_on():
                for cluster in swaps.leave:
                    self._leave(cluster)
                for cluster in swaps.enter:
                    self._enter(cluster)
        except Exception as error:  # of the device: whatever it is, searches go on without it
            self.fail(error)

    def _may_go_on(self) -> bool:
        return self._is_open and not self._is_closing

    def _leave(self, cluster: ClusterId) -> None:
        with self._lock:
            if self._live.pop(cluster, None) is None:
                return
            while self._pins[cluster] and self._may_go_on():
                self._unpinned.wait()
            if not self._may_go_on():
                return
        self._device.drop(cluster)
        self._changed(cluster, is_in=False, result="left")

    def _enter(self, cluster: ClusterId) -> None:
        if not self._may_go_on():
            return
        try:
            vectors = self._rows.read(cluster)
            self._device.load(cluster, int(self._first_rows[cluster]), vectors)
        except (CorruptionError, RetryableError) as error:
            is_full = isinstance(error, ShardFullError)
            if not is_full:
                _log.error("a cluster cannot be loaded", cluster=cluster, error=str(error))
            self._changed(cluster, is_in=False, result="full" if is_full else "failed")
            return
        with self._lock:
            if not self._is_open:
                return
            self._live[cluster] = self._device.size_bytes(len(vectors))
        self._changed(cluster, is_in=True, result="loaded")

    def _changed(self, cluster: ClusterId, *, is_in: bool, result: str) -> None:
        with self._lock:
            self._changes.append((cluster, is_in))
            size_bytes = sum(self._live.values())
        self._metrics.shard_swaps.labels(result=result).inc()
        self._metrics.shard_bytes.set(size_bytes)
