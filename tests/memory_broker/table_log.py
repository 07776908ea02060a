"""The `TopicLog` of a broker in memory, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.kafka.records import Message, TopicPartition
from schemas.topics import ANSWERS, CANCELS, Topic
from tests.memory_broker.broker import MemoryBroker


class MemoryTableLog:
    """A `TopicLog` of a `MemoryBroker`. No call blocks."""

    def __init__(self, broker: MemoryBroker, topic: Topic) -> None:
        self.topic = topic.name
        self._broker = broker
        self._next: dict[int, int] = {}

    def open(self) -> None:
        """Every topic is there."""

    def first_since(self, partition: int, since_ms: int) -> int:
        """Returns the offset of the first record of `since_ms` or later, or the end."""
        at = TopicPartition(self.topic, partition)
        with self._broker.lock:
            log = self._broker.logs[at]
            found = log.next_committed(0)
            while found is not None and found[1].timestamp_ms < since_ms:
                found = log.next_committed(found[0] + 1)
            return log.last_stable() if found is None else found[0]

    def begin(self, partition: int, offset: int) -> None:
        """Begins at this offset."""
        self._next[partition] = offset

    def forget(self, partition: int) -> None:
        """Stops reading the partition."""
        del self._next[partition]

    def end(self, partition: int) -> int:
        """Returns the high watermark."""
        with self._broker.lock:
            return len(self._broker.logs[TopicPartition(self.topic, partition)])

    def poll(self, timeout_s: float, records_max: int) -> Sequence[Message]:
        """Returns what is committed now."""
        read: list[Message] = []
        with self._broker.lock:
            for partition, offset in self._next.items():
                at = TopicPartition(self.topic, partition)
                log = self._broker.logs[at]
                found = log.next_committed(offset)
                while found is not None and len(read) < records_max:
                    read.append(self._broker.message(at, *found))
                    offset = found[0] + 1
                    found = log.next_committed(offset)
                self._next[partition] = offset if found is not None else log.last_stable()
        return read

    def position(self, partition: int) -> int:
        """Returns the position."""
        return self._next[partition]

    def fetch(self, partition: int, offset: int) -> Message | None:
        """Returns the record at `offset`, if a reader of committed records sees it."""
        at = TopicPartition(self.topic, partition)
        with self._broker.lock:
            found = self._broker.logs[at].next_committed(offset)
            if found is None or found[0] != offset:
                return None
            return self._broker.message(at, *found)

    def close(self) -> None:
        """Does nothing."""


class MemoryAnswersLog(MemoryTableLog):
    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, ANSWERS)


class MemoryCancelsLog(MemoryTableLog):
    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, CANCELS)
