"""Units in flight by id: which parts they owe, and which are finished but not complete."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from carpool.kafka.clients import Position
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.positions import Positions
from carpool.loop.stage import Done, R, Unit

Parts = Iterable[tuple[int, int]]
"""(unit id, part) of each."""


class InFlight:
    """Accepted units that are not complete. Thread-safe; short calls under one lock."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self._lock = threading.Lock()
        self.units: dict[int, Unit[Any]] = {}
        """Those that are assigned to this member and owe a part, by id."""
        self._owed: dict[int, set[int]] = {}  # parts, by unit
        self._next_id = 1
        self._finished: dict[tuple[int, int], int] = {}  # bytes of outputs, by (unit id, part)
        self.unfinished_parts: Counter[str] = Counter()
        """Parts that are owed and not finished, by topic."""
        self.finished_bytes = 0
        """Bytes of outputs that wait for their commit."""

    def take(self, message: Message, record: R, parts: int) -> Unit[R] | None:
        """Adds an accepted record.

        Returns None when an earlier process completed all of it, or its partition is not assigned.
        """
        source = message.source
        at = TopicPartition(source.topic, source.partition)
        done = self.positions.take(at, source.offset, parts)
        owed = set(range(parts)) - done
        if not owed:
            return None
        with self._lock:
            unit = Unit(
                id=self._next_id, record=record, message=message, parts=parts, parts_done=done
            )
            self._next_id += 1
            self.units[unit.id] = unit
            self._owed[unit.id] = owed
            self.unfinished_parts[source.topic] += len(owed)
            return unit

    def revoke(self, partitions: frozenset[TopicPartition]) -> frozenset[int]:
        """Forgets these partitions and returns the ids of their units."""
        with self._lock:
            gone = {id_ for id_, unit in self.units.items() if unit.at in partitions}
            for id_ in gone:
                self._forget(id_)
            self.positions.revoke(partitions)
            return frozenset(gone)

    def finish(self, done: Done) -> bool:
        """Marks parts as finished: their outputs wait to be written and committed.

        False if all of them were finished before: that is another result of the same parts.
        """
        with self._lock:
            if all(key in self._finished for key in done.parts):
                return False
            size_bytes = sum(len(output.value or b"") for output in done.outputs)
            for key in done.parts:
                if self._owes(key) and key not in self._finished:
                    # The first part counts the outputs.
                    self._finished[key], size_bytes = size_bytes, 0
                    self.finished_bytes += self._finished[key]
                    self.unfinished_parts[self.units[key[0]].source.topic] -= 1
            return True

    def unfinished(self, parts: Parts) -> list[tuple[Unit[Any], int]]:
        """Returns those of `parts` that are owed and not finished, with their units."""
        with self._lock:
            return [
                (self.units[key[0]], key[1])
                for key in parts
                if self._owes(key) and key not in self._finished
            ]

    def reopen(self, done: Done) -> list[Unit[Any]]:
        """Marks parts as unfinished and returns their units, as far as they are still assigned."""
        with self._lock:
            for key in done.parts:
                self._mark_unfinished(key)
            live = {key[0]: self.units[key[0]] for key in done.parts if self._owes(key)}
            return list(live.values())

    def is_live(self, parts: Parts) -> bool:
        """Whether their units are still assigned to this member and owe all these parts."""
        with self._lock:
            return all(map(self._owes, parts))

    def complete(self, done: Done) -> None:
        """Marks parts as complete: their outputs are written. Skips parts of revoked units."""
        with self._lock:
            for key in filter(self._owes, done.parts):
                unit_id, part = key
                unit = self.units[unit_id]
                self.positions.complete(unit, part)
                self._mark_unfinished(key)
                self._owed[unit_id].discard(part)
                self.unfinished_parts[unit.source.topic] -= 1
                if not self._owed[unit_id]:
                    self._forget(unit_id)

    def partitions(self, done: Done) -> frozenset[TopicPartition]:
        """Returns where the parts of this work were read, less those of revoked units."""
        with self._lock:
            return frozenset(self.units[id_].at for id_, _ in done.parts if id_ in self.units)

    def after(self, work: Iterable[Done]) -> dict[TopicPartition, Position]:
        """Returns the positions to commit with this work: see `Positions.after`."""
        with self._lock:
            keys = [key for done in work for key in done.parts if key[0] in self.units]
            parts = [(self.units[id_], part) for id_, part in keys]
        return self.positions.after(parts)

    def check_integrity(self) -> None:
        """Recomputes all sums. Raises `AssertionError` when one is wrong."""
        with self._lock:
            assert set(self.units) == set(self._owed), "every unit has an entry"
            assert all(self._owed.values()), "every unit owes a part"
            assert all(map(self._owes, self._finished)), "a finished part is owed"
            unfinished = Counter(
                unit.source.topic
                for id_, unit in self.units.items()
                for part in self._owed[id_]
                if (id_, part) not in self._finished
            )
            assert +self.unfinished_parts == unfinished, "unfinished parts by topic"
            assert self.finished_bytes == sum(self._finished.values()), "finished bytes"
            places = {unit.at for unit in self.units.values()} | self.positions.moved
            assert places <= self.positions.assigned, "all partitions are assigned"

    def _owes(self, key: tuple[int, int]) -> bool:
        return key[1] in self._owed.get(key[0], ())

    def _mark_unfinished(self, key: tuple[int, int]) -> None:
        if (size_bytes := self._finished.pop(key, None)) is not None:
            self.finished_bytes -= size_bytes
            self.unfinished_parts[self.units[key[0]].source.topic] += 1

    def _forget(self, unit_id: int) -> None:
        for part in self._owed[unit_id]:
            self._mark_unfinished((unit_id, part))
        unit = self.units.pop(unit_id)
        self.unfinished_parts[unit.source.topic] -= len(self._owed.pop(unit_id))
