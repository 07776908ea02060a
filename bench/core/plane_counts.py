"""What a search plane counts and how long it is busy, as benchmarks report it. Light to import."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from schemas.record import ClusterId

if TYPE_CHECKING:
    from carpool.telemetry.metrics import Metrics


def bytes_read(metrics: Metrics) -> tuple[int, int]:
    """Returns the bytes that the searcher has read on demand, and those read ahead."""
    count = metrics.registry.get_sample_value
    demanded, codes, ahead = (
        int(count("carpool_bytes_read_total", {"purpose": purpose}) or 0)
        for purpose in ("demand", "codes", "prefetch")
    )
    return demanded + codes, ahead


class BusyTimes:
    """An `EventLog` that adds up the time of reads and of scoring.

    Times that overlap count once. Events end nearly in order.
    """

    def __init__(self) -> None:
        self.read_us = self.scored_us = 0
        self._read_until_us = self._scored_until_us = 0
        self._lock = threading.Lock()

    def read(self, cluster: ClusterId, purpose: str, started_us: int, ended_us: int) -> None:
        """Adds the time of a read in which no other read was counted."""
        with self._lock:
            self.read_us += max(0, ended_us - max(started_us, self._read_until_us))
            self._read_until_us = max(self._read_until_us, ended_us)

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """Adds the time of a scoring, once for all slices of a sub-stage."""
        with self._lock:
            self.scored_us += max(0, ended_us - max(started_us, self._scored_until_us))
            self._scored_until_us = max(self._scored_until_us, ended_us)
