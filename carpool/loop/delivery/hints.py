"""Sends best-effort records with a separate producer, outside every commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from carpool.errors import CarpoolError
from carpool.kafka.clients import ProducerClient
from carpool.kafka.records import Output
from carpool.telemetry.metrics import Metrics

WAITING_MAX = 10_000


class Hints:
    """Records that may be lost. `add` is thread-safe; one thread makes all other calls."""

    def __init__(self, make_producer: Callable[[], ProducerClient], metrics: Metrics) -> None:
        """`make_producer` is called for the first record."""
        self._make_producer = make_producer
        self._dropped = metrics.delivery.hints_dropped
        self._waiting: deque[Output] = deque()
        self._producer: ProducerClient | None = None

    def __bool__(self) -> bool:
        """Whether any record waits to be sent."""
        return bool(self._waiting)

    def add(self, output: Output) -> bool:
        """Adds a record; False when too many wait: it is dropped."""
        if len(self._waiting) >= WAITING_MAX:
            self._dropped.inc()
            return False
        self._waiting.append(output)
        return True

    def send(self) -> None:
        """Sends waiting records and serves reports. Does not block."""
        if self._producer is None:
            if not self._waiting:
                return
            self._producer = self._make_producer()
        while self._waiting:
            if not self._producer.produce(self._waiting.popleft(), self._reported):
                self._dropped.inc()
        self._producer.poll(0)

    def close(self) -> None:
        """Flushes for at most one second."""
        if self._producer is not None:
            self._producer.close(1.0)

    def _reported(self, error: CarpoolError | None) -> None:
        if error is not None:
            self._dropped.inc()
