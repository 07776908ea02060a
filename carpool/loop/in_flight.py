"""What is in flight: units by id, the progress of every assigned partition. One lock, short calls,
no I/O.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

from carpool.kafka.clients import Position
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.partition_progress import PartitionProgress
from carpool.loop.stage import Done, R, Unit
from schemas.topics import is_batch


class InFlight:
    """Units taken in and not yet complete, and how far each partition is. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._units: dict[int, Unit[Any]] = {}
        self._owed: dict[int, set[int]] = {}
        self._next_id = 1
        self._dirty: set[TopicPartition] = set()
        self._bytes = 0
        self._held: Counter[str] = Counter()
        self._finished: dict[
            int, dict[int, int]
        ] = {}  # bytes of outputs that wait, by unit and part
        self._finished_bytes = 0

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Begins with these partitions at what was committed for them."""
        with self._lock:
            for at, position in positions.items():
                self._progress[at] = PartitionProgress(position.offset, position.metadata)

    def take(self, message: Message, record: R, parts: int) -> Unit[R] | None:
        """Notes a record as taken in; None when an earlier life completed all of it, or its
        partition is not ours.
        """
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
            unit = Unit(
                id=self._next_id, record=record, message=message, parts=parts, parts_done=done
            )
            self._next_id += 1
            self._units[unit.id] = unit
            self._owed[unit.id] = owed
            self._bytes += message.size_bytes
            self._held[source.topic] += len(owed)
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

    def finish(self, done: Done) -> None:
        """Notes parts whose outputs wait to be written and committed: the stage holds them no
        more.
        """
        with self._lock:
            size_bytes = sum(len(output.value) for output in done.outputs)
            for id_, part in done.parts:
                finished = (
                    self._finished.setdefault(id_, {}) if part in self._owed.get(id_, ()) else None
                )
                if finished is not None and part not in finished:
                    finished[part], size_bytes = size_bytes, 0  # the first one carries the outputs
                    self._finished_bytes += finished[part]
                    self._held[self._units[id_].source.topic] -= 1

    def _take_back(self, unit_id: int, part: int) -> None:
        """A part is held as if it had not been finished."""
        finished = self._finished.get(unit_id, {})
        if part in finished:
            self._finished_bytes -= finished.pop(part)
            self._held[self._units[unit_id].source.topic] += 1
        if not finished:
            self._finished.pop(unit_id, None)

    def _forget(self, unit_id: int) -> None:
        for part in tuple(self._finished.get(unit_id, ())):
            self._take_back(unit_id, part)
        unit = self._units.pop(unit_id)
        self._held[unit.source.topic] -= len(self._owed.pop(unit_id))
        self._bytes -= unit.message.size_bytes

    def is_live(self, done: Done) -> bool:
        """Whether every unit of `done` is still ours and owes these parts."""
        with self._lock:
            return all(part in self._owed.get(id_, ()) for id_, part in done.parts)

    def survivors(self, done: Done) -> list[Unit[Any]]:
        """Returns the units of `done` that are still ours, to be worked on again, each once."""
        with self._lock:
            for id_, part in done.parts:
                self._take_back(id_, part)
            live = {
                id_: self._units[id_] for id_, part in done.parts if part in self._owed.get(id_, ())
            }
            return list(live.values())

    def is_batch(self, done: Done) -> bool:
        """Returns whether what `done` acknowledges was read from topics of the class `batch`; True
        for what is no longer ours.
        """
        with self._lock:
            units = (self._units.get(id_) for id_, _ in done.parts)
            return all(unit is None or is_batch(unit.source.topic) for unit in units)

    def complete(self, done: Done) -> None:
        """Notes parts whose outputs are written; those of units that are no longer ours are passed
        over.
        """
        with self._lock:
            for id_, part in done.parts:
                owed = self._owed.get(id_)
                if owed is None or part not in owed:
                    continue
                unit = self._units[id_]
                self._progress[_place(unit)].complete(unit.source.offset, part)
                self._dirty.add(_place(unit))
                self._take_back(id_, part)
                owed.discard(part)
                self._held[unit.source.topic] -= 1
                if not owed:
                    self._forget(id_)

    def to_commit(self) -> dict[TopicPartition, Position]:
        """Returns the positions that moved since the last call and marks them clean."""
        with self._lock:
            moved = {at: self._progress[at].position_with({}) for at in self._dirty}
            self._dirty.clear()
            return moved

    def positions_with(self, finished: Iterable[Done]) -> dict[TopicPartition, Position]:
        """Returns the positions as they will be once `finished` is complete: of its partitions, and
        of those that moved before.

        Changes nothing. Parts of units that are no longer ours are passed over.
        """
        with self._lock:
            completions: dict[TopicPartition, dict[int, set[int]]] = {at: {} for at in self._dirty}
            for done in finished:
                for id_, part in done.parts:
                    if (unit := self._units.get(id_)) is not None:
                        of_partition = completions.setdefault(_place(unit), {})
                        of_partition.setdefault(unit.source.offset, set()).add(part)
            return {
                at: self._progress[at].position_with(parts) for at, parts in completions.items()
            }

    def nearest_first(self, finished: Iterable[Done]) -> list[Done]:
        """Returns finished work of units that are ours, what is nearest to the low watermarks
        first.
        """
        with self._lock:

            def distance(done: Done) -> int:
                units = (self._units[id_] for id_, _ in done.parts)
                return min(
                    (
                        unit.source.offset - (self._progress[_place(unit)].low_watermark or 0)
                        for unit in units
                    ),
                    default=0,
                )

            return sorted(finished, key=distance)

    def touches(self, done: Done, partitions: Set[TopicPartition]) -> bool:
        """Returns whether a unit of `done` was read from one of these."""
        with self._lock:
            return any(_place(self._units[id_]) in partitions for id_, _ in done.parts)

    def committed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Notes that these positions are committed: partitions that are no further are clean."""
        with self._lock:
            for at, position in positions.items():
                progress = self._progress.get(at)
                if progress is not None and progress.position_with({}) == position:
                    self._dirty.discard(at)

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
    def held(self) -> Mapping[str, int]:
        """Parts that are owed and not finished, by the topic that their units were read from."""
        return self._held

    @property
    def finished_bytes(self) -> int:
        """Bytes of outputs that are not known to be committed."""
        return self._finished_bytes

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of their records."""
        return self._bytes

    def metadata_bytes(self) -> int:
        """The longest commit metadata of any partition now: what stops the intake before brokers
        refuse a commit.

        Where the slow record is not in hand, only taking it in makes the metadata shorter: such a
        partition does not count.
        """
        with self._lock:
            moving = (progress for progress in self._progress.values() if progress.in_flight)
            return max((len(progress.position_with({}).metadata) for progress in moving), default=0)

    def check_integrity(self) -> None:
        """Re-checks the books. Raises `AssertionError` when they do not add up."""
        with self._lock:
            assert set(self._units) == set(self._owed), "every unit owes something"
            assert all(self._owed.values()), "a unit that owes nothing is forgotten"
            held = Counter(
                unit.source.topic
                for id_, unit in self._units.items()
                for part in self._owed[id_]
                if part not in self._finished.get(id_, ())
            )
            assert +self._held == held, "parts by topic add up"
            assert all(parts.keys() <= self._owed[id_] for id_, parts in self._finished.items()), (
                "what is finished is owed"
            )
            waiting = sum(sum(parts.values()) for parts in self._finished.values())
            assert self._finished_bytes == waiting, "finished bytes add up"
            assert self._bytes == sum(unit.message.size_bytes for unit in self._units.values()), (
                "bytes add up"
            )
            assert all(_place(unit) in self._progress for unit in self._units.values()), (
                "units belong to our partitions"
            )
            assert self._dirty <= set(self._progress), "only our partitions are committed"


def _place(unit: Unit[Any]) -> TopicPartition:
    return TopicPartition(unit.source.topic, unit.source.partition)
