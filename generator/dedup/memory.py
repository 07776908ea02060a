"""The log of answers of a broker in memory, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.errors import ConfigError
from carpool.kafka.memory.broker import MemoryBroker
from carpool.kafka.records import Message, TopicPartition
from schemas.topics import ANSWERS, RETRIEVALS


class MemoryAnswersReader:
    """An `AnswersReader` of a `MemoryBroker`. Nothing here ever waits."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._next: dict[int, int] = {}

    def open(self) -> None:
        """Checks the topic."""
        answers = self._broker.partitions.get(ANSWERS.name, 0)
        retrievals = self._broker.partitions.get(RETRIEVALS.name, 0)
        if answers != retrievals:
            raise ConfigError(
                f"{ANSWERS.name} has {answers} partitions and {RETRIEVALS.name} {retrievals}"
            )

    def begin(self, partition: int, since_ms: int) -> int:
        """Begins at the first record of `since_ms` or later, or at the end."""
        at = TopicPartition(ANSWERS.name, partition)
        with self._broker.lock:
            log = self._broker.logs[at]
            found = log.next_committed(0)
            while found is not None and found[1].timestamp_ms < since_ms:
                found = log.next_committed(found[0] + 1)
            self._next[partition] = log.last_stable() if found is None else found[0]
        return self._next[partition]

    def end(self, partition: int) -> int:
        """Returns the high watermark."""
        with self._broker.lock:
            return len(self._broker.logs[TopicPartition(ANSWERS.name, partition)])

    def poll(self, timeout_s: float, records_max: int) -> Sequence[Message]:
        """Returns what is committed now."""
        read: list[Message] = []
        with self._broker.lock:
            for partition, offset in self._next.items():
                at = TopicPartition(ANSWERS.name, partition)
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
        at = TopicPartition(ANSWERS.name, partition)
        with self._broker.lock:
            found = self._broker.logs[at].next_committed(offset)
            return (
                self._broker.message(at, *found)
                if found is not None and found[0] == offset
                else None
            )

    def close(self) -> None:
        """Nothing to let go of."""
