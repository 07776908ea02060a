"""Chooses the next polled record to accept: one bounded queue for each topic, in turns. Pure.

A service reads one topic for each priority class. A client returns records in the order of its
fetches, so an urgent record may be behind thousands of others. The queues sort the polled records;
a topic whose queue is full is paused. The partitions of a topic alternate too: a client returns all
fetched records of one partition before those of the next one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from carpool.kafka.records import Message, TopicPartition
from carpool.loop.ends import Ends
from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin
from carpool.loop.stage import R

RECORD_COST_BYTES = 1_024
"""Cost of a record in addition to its bytes."""
QUANTUM_BYTES = 8_192
RECORDS_MAX = 1_024
BYTES_MAX = 8 * 1024 * 1024
"""Limits of the queue of a topic.

A pause discards what the client fetched ahead. Small queues: more is fetched twice; large queues:
more memory.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityClass:
    """A topic that a service reads, and the limits of its priority class.

    `weight`: share of the intake against other topics, while all of them have records.
    `unfinished_max`: parts of this topic that the service may have in progress; None: no
    limit. A limit keeps room for records of other topics, which then need not wait for these.
    `cpu_wait_us_max`: see `carpool.loop.priority.adaptive_rate_limit`; 0: no rate limit.
    """

    topic: str
    weight: int = 1
    unfinished_max: int | None = None
    cpu_wait_us_max: int = 0


@dataclass(frozen=True, kw_only=True)
class Intake(Generic[R]):
    """The input of a service: its topics, their decoder, and how their records end.

    `decode` raises `RecordError`. `parts`: number of results that a record owes. `believed` removes
    what a service does not believe of a record. `ends`: see there; None: a record that fails is
    tried again in place, and becomes a dead letter. `in_order`: results of a partition are handed
    over in the order of its offsets; each `Done` is then of one record. `extra_classes`: topics
    with the same records in other priority classes. `weight`: of `topic`, see `PriorityClass`.
    """

    topic: str
    decode: Callable[[Message], R]
    parts: Callable[[R], int] = lambda _: 1
    believed: Callable[[Message], Message] = lambda message: message
    ends: Ends | None = None
    in_order: bool = False
    weight: int = 1
    extra_classes: tuple[PriorityClass, ...] = ()

    @property
    def classes(self) -> tuple[PriorityClass, ...]:
        """All topics that are read, with their priority classes."""
        return (PriorityClass(topic=self.topic, weight=self.weight), *self.extra_classes)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that are read."""
        return tuple(each.topic for each in self.classes)


def cost_bytes(message: Message) -> int:
    """Returns the cost of a record, for turns and rate limits."""
    return RECORD_COST_BYTES + message.size_bytes


class IntakeQueues:
    """Polled records that are not accepted yet. Not thread-safe; calls take microseconds."""

    def __init__(
        self,
        classes: tuple[PriorityClass, ...],
        *,
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """`records_max`, `bytes_max`: size of a full queue. `add` accepts records beyond them."""
        self._classes = {each.topic: each for each in classes}
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._queues = {topic: _TopicQueue() for topic in self._classes}
        self._full: frozenset[str] = frozenset()
        self._turns = DeficitRoundRobin(
            quantum=QUANTUM_BYTES, weight_of=lambda topic: self._classes[topic].weight
        )

    @property
    def full(self) -> frozenset[str]:
        """The topics to pause: their queue is full, or was full and is not yet half empty."""
        return self._full

    @property
    def records(self) -> int:
        """Records in all queues."""
        return sum(map(len, self._queues.values()))

    def by_partition(self) -> Counter[TopicPartition]:
        """Returns the records of each partition."""
        return Counter(
            {
                TopicPartition(topic, partition): records
                for topic, queue in self._queues.items()
                for partition, records in queue.by_partition()
            }
        )

    def add(self, message: Message) -> None:
        """Adds a polled record."""
        topic = message.source.topic
        self._queues[topic].add(message)
        self._turns.join(topic)
        self._measure(topic)

    def next(
        self, unfinished_parts: Mapping[str, int], may_take: Callable[[str], bool] = lambda _: True
    ) -> Message | None:
        """Removes and returns the record to accept now; None: all are blocked.

        `unfinished_parts` is by topic. `may_take` says whether records of a topic may be accepted.
        """

        def cost(topic: str) -> int | None:
            parts_max = self._classes[topic].unfinished_max
            is_full = parts_max is not None and unfinished_parts.get(topic, 0) >= parts_max
            if is_full or not may_take(topic):
                return None
            return cost_bytes(self._queues[topic].first)

        topic = self._turns.next(cost)
        if topic is None:
            return None
        message = self._queues[topic].pop()
        self._removed(topic)
        return message

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """Drops the records of revoked partitions."""
        for topic, queue in self._queues.items():
            if queue.forget({at.partition for at in partitions if at.topic == topic}):
                self._removed(topic)

    def check_integrity(self) -> None:
        """Asserts that all sums are right."""
        self._turns.check_integrity()
        assert len(self._turns) == sum(bool(queue) for queue in self._queues.values())
        for queue in self._queues.values():
            queue.check_integrity()

    def _removed(self, topic: str) -> None:
        if not self._queues[topic]:
            self._turns.leave(topic)
        self._measure(topic)

    def _measure(self, topic: str) -> None:
        records, size_bytes = len(self._queues[topic]), self._queues[topic].size_bytes
        if records >= self._records_max or size_bytes >= self._bytes_max:
            self._full |= {topic}
        elif (
            topic in self._full
            and records <= self._records_max // 2
            and size_bytes <= self._bytes_max // 2
        ):
            self._full -= {topic}


class _TopicQueue:
    """The records of a topic: in order within a partition, partitions in turns."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Message]] = {}  # by partition, in the order of turns
        self._records = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._records

    @property
    def first(self) -> Message:
        """The next record; there must be one."""
        return next(iter(self._queues.values()))[0]

    def by_partition(self) -> Iterator[tuple[int, int]]:
        """Yields each partition that has records, and how many."""
        return ((partition, len(queue)) for partition, queue in self._queues.items())

    def add(self, message: Message) -> None:
        self._queues.setdefault(message.source.partition, deque()).append(message)
        self._records += 1
        self.size_bytes += message.size_bytes

    def pop(self) -> Message:
        """Removes and returns the first record; its partition goes behind all others."""
        partition = next(iter(self._queues))
        queue = self._queues.pop(partition)
        message = queue.popleft()
        if queue:
            self._queues[partition] = queue
        self._records -= 1
        self.size_bytes -= message.size_bytes
        return message

    def forget(self, partitions: Collection[int]) -> bool:
        """Drops the records of these partitions; returns whether there were any."""
        gone = [
            self._queues.pop(partition) for partition in partitions if partition in self._queues
        ]
        self._records -= sum(map(len, gone))
        self.size_bytes -= sum(message.size_bytes for queue in gone for message in queue)
        return bool(gone)

    def check_integrity(self) -> None:
        assert all(self._queues.values())
        assert self._records == sum(map(len, self._queues.values()))
        assert self.size_bytes == sum(
            message.size_bytes for queue in self._queues.values() for message in queue
        )
