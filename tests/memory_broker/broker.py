"""The broker in memory: topics, consumer groups, transactions, and requested faults."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

from carpool.clock import Clock
from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.clients import Position
from carpool.kafka.records import Message, TopicPartition
from schemas.record import Headers, Source
from tests.memory_broker.groups import ConsumerGroup, GroupMember
from tests.memory_broker.log import PartitionLog, StoredRecord
from tests.memory_broker.transactions import TransactionCoordinator

Call = Literal[
    "produce",
    "commit_offsets",
    "read_offsets",
    "start",
    "begin",
    "produce_in_transaction",
    "send_offsets",
    "commit",
    "abort",
]
"""The calls of clients that a test can make fail."""


class _BrokenCall(NamedTuple):
    error: CarpoolError
    took_effect: bool


class MemoryBroker:
    """Topics and consumer groups in one process. Thread-safe."""

    def __init__(self, clock: Clock, topics: Mapping[str, int]) -> None:
        """Makes the topics; `topics` maps a name to its number of partitions."""
        self.clock = clock
        self.lock = threading.RLock()
        self.partitions = dict(topics)
        self.logs = {
            TopicPartition(topic, partition): PartitionLog()
            for topic, n in topics.items()
            for partition in range(n)
        }
        self.groups: dict[str, ConsumerGroup] = {}
        self.commits: list[dict[TopicPartition, Position]] = []
        self.transactions = TransactionCoordinator(clock, self.logs, self.groups)
        self._faults: dict[str, deque[_BrokenCall]] = {}

    def break_next(self, call: Call, error: CarpoolError, *, took_effect: bool = False) -> None:
        """The next call of this kind raises `error`; `took_effect`: only its reply is lost."""
        with self.lock:
            self._faults.setdefault(call, deque()).append(_BrokenCall(error, took_effect))

    @contextmanager
    def serve(self, call: Call) -> Iterator[None]:
        """Serves a client's call, under the lock, unless a fault says otherwise."""
        with self.lock:
            faults = self._faults.get(call)
            fault = faults.popleft() if faults else None
            if fault is not None and not fault.took_effect:
                raise fault.error
            yield
            if fault is not None:
                raise fault.error

    def place(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Returns the partition of a record: the given one, or one chosen by the key."""
        if topic not in self.partitions:
            raise ConfigError(f"topic {topic} does not exist; create it first")
        chosen = sum(key or b"") % self.partitions[topic] if partition is None else partition
        if chosen >= self.partitions[topic]:
            raise ConfigError(f"topic {topic} has no partition {chosen}")
        return TopicPartition(topic, chosen)

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> int:
        """Appends a record outside every transaction and returns its offset."""
        with self.lock:
            entry = StoredRecord(
                key=key, value=value, headers=headers, timestamp_ms=self.clock.now_us() // 1_000
            )
            return self.logs[self.place(topic, key, partition)].append(entry)

    def records(self, topic: str) -> list[Message]:
        """Returns the committed records of a topic, partition by partition."""
        with self.lock:
            return [
                self.message(at, offset, entry)
                for at in sorted(self.logs)
                if at.topic == topic
                for offset, entry in self.logs[at].committed()
            ]

    def message(self, at: TopicPartition, offset: int, entry: StoredRecord) -> Message:
        """Returns a stored record as a consumer gets it."""
        source = Source(
            topic=at.topic, partition=at.partition, offset=offset, timestamp_ms=entry.timestamp_ms
        )
        return Message(
            source=source,
            key=entry.key,
            value=entry.value,
            headers=entry.headers,
            received_us=self.clock.now_us(),
        )

    def committed(self, group: str) -> dict[TopicPartition, Position]:
        """Returns the committed positions of a consumer group."""
        with self.lock:
            return dict(self.groups[group].positions) if group in self.groups else {}

    def join(self, name: str, member: GroupMember, topics: tuple[str, ...]) -> ConsumerGroup:
        """Adds a member that reads these topics. Raises `ConfigError` for a missing topic."""
        with self.lock:
            for topic in topics:
                if topic not in self.partitions:
                    raise ConfigError(f"topic {topic} does not exist; create it first")
            partitions = [
                TopicPartition(topic, partition)
                for topic in topics
                for partition in range(self.partitions[topic])
            ]
            group = self.groups.setdefault(name, ConsumerGroup(partitions, self.commits))
            group.join(member)
            return group

    def expel(self, group: str, member: GroupMember) -> None:
        """Removes a member, as after its session time-out; its next `poll` loses the partitions."""
        with self.lock:
            self.groups[group].leave(member)

    def assign(self, group: str, owners: Mapping[int, GroupMember]) -> None:
        """Moves partitions by number in the group's topics; seen by the members' next `poll`."""
        with self.lock:
            found = self.groups[group]
            found.assign({found.partitions[number]: owner for number, owner in owners.items()})
