"""The interface between the loop and the two ways to commit finished work."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.clients import ProducerClient
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.in_flight import InFlight
from carpool.loop.priority.priority_consumer import PriorityConsumer
from carpool.loop.refusal import Refusal
from carpool.loop.stage import Done, Unit
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.metrics import Metrics
from carpool.worker import as_failure

log = structlog.get_logger()

IDLE_WAIT_S = 0.2
JOIN_S = 5.0
HINTS_WAITING_MAX = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopParts:
    """What the parts of a loop share. For any thread.

    `again`: units to offer again, and when: what failed, and what shared its outputs with a revoked
    partition. `failures`: why the service cannot go on; the first one counts.
    """

    in_flight: InFlight
    consumer: PriorityConsumer
    observer: WorkObserver
    clock: Clock
    metrics: Metrics
    again: deque[tuple[Unit[Any], int]] = field(default_factory=deque)
    failures: list[CarpoolError] = field(default_factory=list)

    def fail(self, error: CarpoolError) -> None:
        """Ends the service."""
        if not self.failures:
            log.error("cannot go on", error=str(error), kind=type(error).__name__)
        self.failures.append(error)

    @property
    def failure(self) -> CarpoolError | None:
        """The first failure, if any."""
        return self.failures[0] if self.failures else None


class Hints:
    """Best-effort records, outside every commit. `add` is thread-safe; one thread does the rest."""

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
        if len(self._waiting) >= HINTS_WAITING_MAX:
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


class Delivery(ABC):
    """Commits finished work on a thread of its own. `submit` and `hint` are thread-safe."""

    def __init__(self, parts: LoopParts, make_hint_producer: Callable[[], ProducerClient]) -> None:
        self._parts = parts
        self._in_flight = parts.in_flight
        self._positions = parts.in_flight.positions
        self._clock = parts.clock
        self.refusal = Refusal(parts.clock)
        """What the brokers refuse of the outputs and commits, or nothing."""
        self.may_give_up = True
        """Whether this process gives its partitions up alive (ADR 0027): no defect ends it."""
        self._hints = Hints(make_hint_producer, parts.metrics)
        self._submitted: deque[Done] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stop_by_us: int | None = None
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises as the producer does."""
        self._thread.start()

    @abstractmethod
    def step(self, wait_s_max: float = IDLE_WAIT_S) -> None:
        """Does one round on the thread. Waits for work for at most `wait_s_max` seconds."""

    def submit(self, done: Done) -> None:
        """Adds finished work. Does not block: the intake limits how much waits here."""
        self._submitted.append(done)
        self._wake.set()

    def hint(self, output: Output) -> None:
        """Adds a best-effort record; drops it when too many wait."""
        if self._hints.add(output):
            self._wake.set()

    def after_poll(self) -> None:
        """Serves commits on the polling thread. Called after each poll."""
        return

    @abstractmethod
    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        """Commits finished work, forgets the partitions, and returns the ids of their units.

        Called from inside the consumer's poll, on the polling thread. Waits for the running commit.
        Does at most one commit, and none when the partitions are `lost`.
        """

    def close(self, until_us: int) -> None:
        """Writes and commits submitted work, until `until_us`."""
        self._stop_by_us = until_us
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():  # else it has ended, or was stopped before its start
            self._thread.join(max(0.0, (until_us - self._clock.now_us()) / 1_000_000) + JOIN_S)

    @property
    @abstractmethod
    def backlog(self) -> int:
        """Finished work and outputs that are not committed or acknowledged yet."""

    @property
    def next_commit_at_us(self) -> int:
        """Estimate of the earliest commit of work that finishes now, epoch microseconds.

        0: such work does not wait.
        """
        return 0

    # The delivery thread.

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() and (self._is_late() or self._may_end())):
                self.step()
        except Exception as error:  # the loop ends the process
            self._parts.fail(as_failure(error))
        finally:
            self._hints.close()
            self._close_producer()

    @abstractmethod
    def _close_producer(self) -> None: ...

    def _may_end(self) -> bool:
        """Whether the thread may end after `close`."""
        return not self.backlog or self.refusal.reason is not None

    def _is_late(self) -> bool:
        return self._stop_by_us is not None and self._clock.now_us() >= self._stop_by_us

    def _complete(self, work: Iterable[Done]) -> None:
        """Notes that the outputs of this work are written, or committed."""
        for done in work:
            self._in_flight.complete(done)
            self._parts.observer.completed(done)

    def _reopen(self, work: Iterable[Done]) -> None:
        """Discards work of a revoked partition; units that are still assigned start again."""
        for done in work:
            self._parts.again.extend((unit, 0) for unit in self._in_flight.reopen(done))


MakeDelivery = Callable[[LoopParts], Delivery]
