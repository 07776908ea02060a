"""Best-effort records, outside every commit: a Kafka producer of their own, made with the first of
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from carpool.errors import CarpoolError
from carpool.kafka.clients import ProducerClient
from carpool.kafka.records import Output
from carpool.telemetry.metrics import Metrics

WAITING_MAX = 10_000


class Hints:
    """Records that may be lost. `add` is thread-safe; all else is one thread's."""

    def __init__(self, make_producer: Callable[[], ProducerClient], metrics: Metrics) -> None:
        self._make_producer = make_producer
        self._metrics = metrics
        self._waiting: deque[Output] = deque()
        self._producer: ProducerClient | None = None

    def __bool__(self) -> bool:
        """Whether any waits to be sent."""
        return bool(self._waiting)

    def add(self, output: Output) -> bool:
        """Takes a record; False when too many wait, and this one is dropped."""
        if len(self._waiting) >= WAITING_MAX:
            self._metrics.delivery.hints_dropped.inc()
            return False
        self._waiting.append(output)
        return True

    def send(self) -> None:
        """Sends what waits and serves reports; never waits."""
        if self._producer is None:
            if not self._waiting:
                return
            self._producer = self._make_producer()
        while self._waiting:
            if not self._producer.produce(self._waiting.popleft(), self._reported):
                self._metrics.delivery.hints_dropped.inc()
        self._producer.poll(0)

    def close(self) -> None:
        """Flushes for a second at most."""
        if self._producer is not None:
            self._producer.close(1.0)

    def _reported(self, error: CarpoolError | None) -> None:
        if error is not None:
            self._metrics.delivery.hints_dropped.inc()
