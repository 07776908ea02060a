"""The metrics of the memory for clusters."""

from __future__ import annotations

from carpool.telemetry.metrics import Metrics
from searcher.events import Purpose


class MemoryMetrics:
    """Bytes read, bytes of the budget by use, and damaged reads."""

    def __init__(self, metrics: Metrics, budget_bytes: int) -> None:
        self._metrics = metrics.searcher
        self._metrics.budget_bytes.set(budget_bytes)
        for purpose in ("demand", "prefetch"):
            self._metrics.bytes_read.labels(purpose=purpose)  # shown before the first read

    def read(self, purpose: Purpose, size_bytes: int) -> None:
        """Counts bytes that were read."""
        self._metrics.bytes_read.labels(purpose=purpose).inc(size_bytes)

    def damaged(self) -> None:
        """Counts a slice that did not pass verification."""
        self._metrics.clusters_damaged.inc()

    def set_bytes(self, *, resident: int, in_flight: int, stuck: int) -> None:
        """Sets the bytes of the budget by use."""
        self._metrics.resident_bytes.labels(kind="resident").set(resident)
        self._metrics.resident_bytes.labels(kind="in_flight").set(in_flight)
        self._metrics.resident_bytes.labels(kind="stuck").set(stuck)
