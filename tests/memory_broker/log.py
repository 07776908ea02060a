"""The log of one partition: records, also of open and aborted transactions, and markers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from carpool.kafka.clients import Position
from carpool.kafka.records import TopicPartition
from schemas.record import Headers


@dataclass(slots=True)
class MemoryTransaction:
    """The writes of one transaction; they are visible when `state` is committed."""

    began_us: int
    state: Literal["open", "committed", "aborted"] = "open"
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[str, dict[TopicPartition, tuple[int, Position]]] = field(default_factory=dict)
    """By consumer group: the position of each partition, and its number among all written offsets.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """One entry of a log. A marker ends a transaction: it takes an offset and is no record."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int
    transaction: MemoryTransaction | None = None
    is_marker: bool = False


class PartitionLog:
    """Entries by offset, from 0. Not thread-safe: the broker's lock guards it."""

    def __init__(self) -> None:
        self._entries: list[StoredRecord] = []

    def __len__(self) -> int:
        """The high watermark: the offset of the next entry."""
        return len(self._entries)

    def append(self, entry: StoredRecord) -> int:
        """Returns the entry's offset."""
        self._entries.append(entry)
        return len(self._entries) - 1

    def next_committed(self, offset: int) -> tuple[int, StoredRecord] | None:
        """Returns the first committed record from `offset` on, with its offset.

        None at the last stable offset: records after an open transaction are invisible, too.
        """
        for at in range(offset, len(self._entries)):
            entry = self._entries[at]
            state = "committed" if entry.transaction is None else entry.transaction.state
            if state == "open":
                return None
            if state == "committed" and not entry.is_marker:
                return at, entry
        return None

    def last_stable(self) -> int:
        """Returns the offset of the first record of an open transaction, or the high watermark."""
        entries = enumerate(self._entries)
        is_open = (
            at
            for at, entry in entries
            if entry.transaction is not None and entry.transaction.state == "open"
        )
        return next(is_open, len(self._entries))

    def committed(self) -> Iterator[tuple[int, StoredRecord]]:
        """Yields every committed record with its offset."""
        found = self.next_committed(0)
        while found is not None:
            yield found
            found = self.next_committed(found[0] + 1)
