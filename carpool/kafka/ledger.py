"""What is in flight: units by id, the progress of every assigned partition. One lock, short calls, no I/O."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from carpool.kafka.clients import Position, TopicPartition
from carpool.kafka.progress import PartitionProgress
from carpool.kafka.stage import Done, Message, R, Unit


class WorkLedger:
    """Units taken in and not yet complete, and how far each partition is. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._units: dict[int, Unit[Any]] = {}
        self._owed: dict[int, set[int]] = {}
        self._next_id = 1
        self._dirty: set[TopicPartition] = set()
        self._bytes = 0

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Begins with these partitions at what was committed for them."""
        with self._lock:
            for at, position in positions.items():
                self._progress[at] = PartitionProgress(position.offset, position.metadata)

    def take(self, message: Message, record: R, parts: int) -> Unit[R] | None:
        """Notes a record as taken in; None when an earlier life completed all of it, or its partition is not ours."""
        source = message.source
        at = TopicPartition(source.topic, source.partition)
        with self._lock:
            progress = self._progress.get(at)
            if progress is None:
                return None
            whole, done = progress.already_done(source.offset)
            progress.take(source.offset, parts)
            owed = set() if whole else set(range(parts)) - done
            if not owed:
                self._dirty.add(at)
                return None
            unit = Unit(id=self._next_id, record=record, message=message, parts=parts, parts_done=done)
            self._next_id += 1
            self._units[unit.id] = unit
            self._owed[unit.id] = owed
            self._bytes += message.size_bytes
            return unit

    def revoke(self, partitions: frozenset[TopicPartition]) -> frozenset[int]:
        """Forgets these partitions and returns the ids of their units."""
        with self._lock:
            gone = {id_ for id_, unit in self._units.items() if _place(unit) in partitions}
            for id_ in gone:
                self._forget(id_)
            for at in partitions:
                self._progress.pop(at, None)
                self._dirty.discard(at)
            return frozenset(gone)

    def _forget(self, unit_id: int) -> None:
        unit = self._units.pop(unit_id)
        del self._owed[unit_id]
        self._bytes -= unit.message.size_bytes

    def is_live(self, done: Done) -> bool:
        """Whether every unit of `done` is still ours and owes these parts."""
        with self._lock:
            return all(part in self._owed.get(id_, ()) for id_, part in done.parts)

    def survivors(self, done: Done) -> list[Unit[Any]]:
        """Returns the units of `done` that are still ours, to be worked on again, each once."""
        with self._lock:
            live = {id_: self._units[id_] for id_, part in done.parts if part in self._owed.get(id_, ())}
            return list(live.values())

    def complete(self, done: Done) -> None:
        """Notes parts whose outputs are written; those of units that are no longer ours are passed over."""
        with self._lock:
            for id_, part in done.parts:
                owed = self._owed.get(id_)
                if owed is None or part not in owed:
                    continue
                unit = self._units[id_]
                self._progress[_place(unit)].complete(unit.source.offset, part)
                self._dirty.add(_place(unit))
                owed.discard(part)
                if not owed:
                    self._forget(id_)

    def to_commit(self) -> dict[TopicPartition, Position]:
        """Returns the positions that moved since the last call and marks them clean."""
        with self._lock:
            moved = {
                at: Position(self._progress[at].low_watermark, self._progress[at].metadata()) for at in self._dirty
            }
            self._dirty.clear()
            return moved

    def not_committed(self, partitions: Mapping[TopicPartition, Position]) -> None:
        """Marks partitions whose commit failed, so that the next commit tries them again."""
        with self._lock:
            self._dirty |= set(partitions) & set(self._progress)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a completed part waits for its commit."""
        return bool(self._dirty)

    @property
    def in_flight(self) -> int:
        """Units that still owe a part."""
        return len(self._units)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of their records."""
        return self._bytes

    def metadata_bytes(self) -> int:
        """The longest commit metadata of any partition now: what stops the intake before brokers refuse a commit."""
        with self._lock:
            return max((len(progress.metadata()) for progress in self._progress.values()), default=0)

    def check_integrity(self) -> None:
        """Re-checks the books. Raises `AssertionError` when they do not add up."""
        with self._lock:
            assert set(self._units) == set(self._owed), "every unit owes something"
            assert all(self._owed.values()), "a unit that owes nothing is forgotten"
            assert self._bytes == sum(unit.message.size_bytes for unit in self._units.values()), "bytes add up"
            assert all(_place(unit) in self._progress for unit in self._units.values()), (
                "units belong to our partitions"
            )
            assert self._dirty <= set(self._progress), "only our partitions are committed"


def _place(unit: Unit[Any]) -> TopicPartition:
    return TopicPartition(unit.source.topic, unit.source.partition)
