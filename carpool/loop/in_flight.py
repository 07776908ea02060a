"""Units in flight by id, and the progress of every assigned partition."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any, Literal

from carpool.errors import DeploymentError
from carpool.kafka.clients import Position
from carpool.kafka.fencing import ALONE_DEATHS, FATAL_DEATHS
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.partition_progress import PartitionProgress
from carpool.loop.stage import Done, R, Unit
from schemas.topics import is_batch

RECORDS_AHEAD_MAX = 1_000_000
METADATA_STOP_BYTES = 3_072
"""A partition with longer commit metadata is full: brokers refuse 4,096 bytes."""


class InFlight:
    """Accepted units that are not complete. Thread-safe; short calls under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._units: dict[int, Unit[Any]] = {}
        self._owed: dict[int, set[int]] = {}  # parts, by unit
        self._next_id = 1
        self._moved: set[TopicPartition] = set()  # partitions to commit
        self._committed: dict[TopicPartition, int] = {}  # by this member
        self._unfinished: Counter[str] = Counter()  # parts, by topic
        # Bytes of outputs that wait for their commit, by unit and part.
        self._finished: dict[int, dict[int, int]] = {}
        self._finished_bytes = 0

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Adds these partitions, from their committed positions.

        Raises `DeploymentError` for metadata that cannot be read, and then adds none.
        """
        added = {at: _progress(at, position) for at, position in positions.items()}
        with self._lock:
            self._progress |= added

    def take(self, message: Message, record: R, parts: int) -> Unit[R] | None:
        """Adds an accepted record.

        Returns None when an earlier process completed all of it, or its partition is not assigned.
        """
        source = message.source
        at = TopicPartition(source.topic, source.partition)
        with self._lock:
            progress = self._progress.get(at)
            if progress is None:
                return None
            done = progress.take(source.offset, parts)
            owed = set(range(parts)) - done
            if not owed:
                self._moved.add(at)
                return None
            unit = Unit(
                id=self._next_id, record=record, message=message, parts=parts, parts_done=done
            )
            self._next_id += 1
            self._units[unit.id] = unit
            self._owed[unit.id] = owed
            self._unfinished[source.topic] += len(owed)
            return unit

    def revoke(self, partitions: frozenset[TopicPartition]) -> frozenset[int]:
        """Forgets these partitions and returns the ids of their units."""
        with self._lock:
            gone = {id_ for id_, unit in self._units.items() if _place(unit) in partitions}
            for id_ in gone:
                self._forget(id_)
            for at in partitions:
                self._progress.pop(at, None)
                self._committed.pop(at, None)
                self._moved.discard(at)
            return frozenset(gone)

    def has(self, unit: Unit[Any]) -> bool:
        """Whether this unit is assigned to this member and owes a part."""
        return unit.id in self._units

    def is_suspect(self, unit: Unit[Any]) -> bool:
        """Whether this unit must be tried alone."""
        with self._lock:
            progress = self._progress.get(_place(unit))
            return progress is not None and progress.deaths_of(unit.source.offset) is not None

    def try_alone(self, unit: Unit[Any], *, is_quiet: bool) -> Literal["wait", "try", "end"]:
        """Notes that a suspect is in hand alone; it waits until that is committed.

        "end": processes died of it alone. After one such death it waits until `is_quiet`.
        """
        at, offset = _place(unit), unit.source.offset
        with self._lock:
            deaths = self._progress[at].deaths_of(offset)
            if deaths is not None and not deaths.is_alone:
                if deaths.times >= FATAL_DEATHS:
                    return "end"
                if deaths.times > ALONE_DEATHS and not is_quiet:
                    return "wait"
                self._progress[at].mark_alone(offset)
                self._moved.add(at)
            return "wait" if at in self._moved else "try"

    def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Lets the next commit say that no one has these partitions in hand."""
        with self._lock:
            for at in partitions & self._progress.keys():
                self._progress[at].give_up()
                self._moved.add(at)

    @property
    def given_up(self) -> frozenset[TopicPartition]:
        """The assigned partitions that were given up."""
        with self._lock:
            return frozenset(at for at, each in self._progress.items() if each.is_given_up)

    def finish(self, done: Done) -> bool:
        """Marks parts as finished: their outputs wait to be written and committed.

        False if all of them were finished before: that is another result of the same parts.
        """
        with self._lock:
            if all(part in self._finished.get(id_, ()) for id_, part in done.parts):
                return False
            size_bytes = sum(len(output.value) for output in done.outputs)
            for id_, part in done.parts:
                if part not in self._owed.get(id_, ()):
                    continue
                finished = self._finished.setdefault(id_, {})
                if part not in finished:
                    finished[part], size_bytes = size_bytes, 0  # the first one counts the outputs
                    self._finished_bytes += finished[part]
                    self._unfinished[self._units[id_].source.topic] -= 1
            return True

    def unfinished(self, parts: Iterable[tuple[int, int]]) -> list[tuple[Unit[Any], int]]:
        """Returns those of `parts` that are owed and not finished, with their units."""
        with self._lock:
            return [
                (self._units[id_], part)
                for id_, part in parts
                if part in self._owed.get(id_, ()) and part not in self._finished.get(id_, ())
            ]

    def reopen(self, done: Done) -> list[Unit[Any]]:
        """Marks parts as unfinished and returns their units, as far as they are still assigned."""
        with self._lock:
            for id_, part in done.parts:
                self._mark_unfinished(id_, part)
            live = {
                id_: self._units[id_] for id_, part in done.parts if part in self._owed.get(id_, ())
            }
            return list(live.values())

    def is_live(self, done: Done) -> bool:
        """Whether all units of `done` are still assigned to this member and owe these parts."""
        with self._lock:
            return all(part in self._owed.get(id_, ()) for id_, part in done.parts)

    def is_batch(self, done: Done) -> bool:
        """Whether all units of `done` are of class batch. Revoked units count as batch."""
        with self._lock:
            units = (self._units.get(id_) for id_, _ in done.parts)
            return all(unit is None or is_batch(unit.source.topic) for unit in units)

    def complete(self, done: Done) -> None:
        """Marks parts as complete: their outputs are written. Skips parts of revoked units."""
        with self._lock:
            for id_, part in done.parts:
                owed = self._owed.get(id_)
                if owed is None or part not in owed:
                    continue
                unit = self._units[id_]
                self._progress[_place(unit)].complete(unit.source.offset, part)
                self._moved.add(_place(unit))
                self._mark_unfinished(id_, part)
                owed.discard(part)
                self._unfinished[unit.source.topic] -= 1
                if not owed:
                    self._forget(id_)

    def positions_with(self, finished: Iterable[Done]) -> dict[TopicPartition, Position]:
        """Returns the positions of moved partitions as they will be once `finished` is complete.

        Changes nothing. Skips parts of revoked units.
        """
        with self._lock:
            completions: dict[TopicPartition, dict[int, set[int]]] = {at: {} for at in self._moved}
            for done in finished:
                for id_, part in done.parts:
                    if (unit := self._units.get(id_)) is not None:
                        of_partition = completions.setdefault(_place(unit), {})
                        of_partition.setdefault(unit.source.offset, set()).add(part)
            return {
                at: self._progress[at].position_with(parts) for at, parts in completions.items()
            }

    def touches(self, done: Done, partitions: Set[TopicPartition]) -> bool:
        """Whether a unit of `done` was read from one of these partitions."""
        with self._lock:
            return any(_place(self._units[id_]) in partitions for id_, _ in done.parts)

    def committed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Notes that these positions are committed."""
        with self._lock:
            for at, position in positions.items():
                progress = self._progress.get(at)
                if progress is None or position.offset is None:
                    continue
                self._committed[at] = position.offset
                if progress.position_with({}) == position:
                    self._moved.discard(at)

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """Returns the last offset that this member committed, by assigned partition."""
        with self._lock:
            return dict(self._committed)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a completed part waits for its commit."""
        return bool(self._moved)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        with self._lock:
            return frozenset(self._progress)

    @property
    def is_assigned(self) -> bool:
        return bool(self._progress)

    @property
    def units(self) -> int:
        """Number of units that owe a part."""
        return len(self._units)

    @property
    def unfinished_parts(self) -> Mapping[str, int]:
        """Parts that are owed and not finished, by topic."""
        return self._unfinished

    @property
    def finished_bytes(self) -> int:
        """Bytes of outputs that wait for their commit."""
        return self._finished_bytes

    def full_partitions(self) -> frozenset[TopicPartition]:
        """Returns the partitions that must not be read on until a slow record is complete.

        They are `RECORDS_AHEAD_MAX` offsets ahead of that record, or their commit metadata is
        nearly as long as brokers accept. A partition without records in flight is never full: it
        must accept its slow record first.
        """
        with self._lock:
            return frozenset(
                at
                for at, progress in self._progress.items()
                if progress.in_flight
                and (
                    progress.ahead >= RECORDS_AHEAD_MAX
                    or len(progress.position_with({}).metadata) > METADATA_STOP_BYTES
                )
            )

    def check_integrity(self) -> None:
        """Recomputes all sums. Raises `AssertionError` when one is wrong."""
        with self._lock:
            assert set(self._units) == set(self._owed), "every unit has an entry"
            assert all(self._owed.values()), "every unit owes a part"
            unfinished = Counter(
                unit.source.topic
                for id_, unit in self._units.items()
                for part in self._owed[id_]
                if part not in self._finished.get(id_, ())
            )
            assert +self._unfinished == unfinished, "unfinished parts by topic"
            for id_, parts in self._finished.items():
                assert parts.keys() <= self._owed[id_], "a finished part is owed"
            waiting = sum(sum(parts.values()) for parts in self._finished.values())
            assert self._finished_bytes == waiting, "finished bytes"
            places = {_place(unit) for unit in self._units.values()}
            assert places | self._moved <= set(self._progress), "all partitions are assigned"

    def _mark_unfinished(self, unit_id: int, part: int) -> None:
        finished = self._finished.get(unit_id, {})
        if part in finished:
            self._finished_bytes -= finished.pop(part)
            self._unfinished[self._units[unit_id].source.topic] += 1
        if not finished:
            self._finished.pop(unit_id, None)

    def _forget(self, unit_id: int) -> None:
        for part in tuple(self._finished.get(unit_id, ())):
            self._mark_unfinished(unit_id, part)
        unit = self._units.pop(unit_id)
        self._unfinished[unit.source.topic] -= len(self._owed.pop(unit_id))


def _progress(at: TopicPartition, position: Position) -> PartitionProgress:
    try:
        return PartitionProgress(position.offset, position.metadata)
    except DeploymentError as error:
        raise DeploymentError(f"{at.topic}[{at.partition}]: {error}") from error


def _place(unit: Unit[Any]) -> TopicPartition:
    return TopicPartition(unit.source.topic, unit.source.partition)
