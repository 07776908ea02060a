"""Kafka producers of the broker in memory: the plain and the transactional one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from carpool.errors import AbortedError, CarpoolError, ConfigError, DeploymentError
from carpool.kafka.clients import Membership, Position
from carpool.kafka.records import Output, TopicPartition
from tests.memory_broker.broker import Call, MemoryBroker
from tests.memory_broker.groups import MemoryMembership

QUEUE_MAX = 100_000


class MemoryProducer:
    """A `ProducerClient` of a `MemoryBroker`; `poll` reports deliveries."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._reports: deque[tuple[Callable[[CarpoolError | None], None], CarpoolError | None]] = (
            deque()
        )

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Appends the record; False when too many reports wait."""
        if len(self._reports) >= QUEUE_MAX:
            return False
        error: CarpoolError | None = None
        try:
            with self._broker.serve("produce"):
                self._broker.append(
                    output.topic,
                    output.value,
                    key=output.key,
                    headers=output.headers,
                    partition=output.partition,
                )
        except CarpoolError as fault:
            error = fault
        self._reports.append((on_delivery, error))
        return True

    def poll(self, timeout_s: float) -> None:
        """Reports what was produced since the last call."""
        while self._reports:
            on_delivery, error = self._reports.popleft()
            on_delivery(error)

    def close(self, timeout_s: float) -> int:
        """Reports the remaining records."""
        self.poll(0)
        return 0


class MemoryTransactionalProducer:
    """A `TransactionalProducerClient` of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch: int | None = None
        self._is_open = False
        self._is_aborted = False
        self._refused: DeploymentError | None = None

    def start(self) -> None:
        """Takes the transactional id."""
        with self._broker.serve("start"):
            self._epoch = self._broker.transactions.start(self._id)

    def begin(self) -> None:
        """Opens a transaction. It begins at the broker with the first record or offset."""
        assert not self._is_open, "one transaction at a time"
        with self._broker.serve("begin"):
            self._is_open = True

    def produce(self, output: Output) -> None:
        """Appends the record, invisible until `commit`, which also reports refused records."""
        with self._call("produce_in_transaction") as epoch:
            try:
                place = self._broker.place(output.topic, output.key, output.partition)
            except ConfigError as missing:
                self._refused = DeploymentError(str(missing))
                return
            self._broker.transactions.append(self._id, epoch, place, output)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, Position], membership: Membership
    ) -> None:
        """Adds offsets."""
        assert isinstance(membership, MemoryMembership), (
            "a membership comes from a consumer of the same broker"
        )
        with self._call("send_offsets") as epoch:
            self._broker.transactions.send_offsets(self._id, epoch, offsets, membership)

    def commit(self) -> None:
        """Commits the transaction."""
        with self._call("commit") as epoch:
            if self._refused is not None:
                raise self._refused
            self._broker.transactions.commit(self._id, epoch)
        self._is_open = False

    def abort(self) -> None:
        """Aborts the transaction."""
        assert self._is_open, "abort comes after begin"
        with self._broker.serve("abort"):
            self._broker.transactions.abort(self._id, self._started())
        self._is_open = self._is_aborted = False
        self._refused = None

    def close(self) -> None:
        """Does nothing: an open transaction stays until the next start or its time-out."""

    @contextmanager
    def _call(self, name: Call) -> Iterator[int]:
        """Serves a call of an open transaction; after an `AbortedError` only `abort` is left."""
        assert self._is_open, f"{name} comes after begin"
        if self._is_aborted:
            raise AbortedError("this transaction has failed before: abort it")
        try:
            with self._broker.serve(name):
                yield self._started()
        except AbortedError:
            self._is_aborted = True
            raise

    def _started(self) -> int:
        assert self._epoch is not None, "start comes first"
        return self._epoch
