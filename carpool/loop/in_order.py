"""Hands over the finished work of a partition in the order of its offsets.

Work is done in any order, and its results wait here for those of the records before them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Done, Unit


@dataclass(slots=True)
class _InLine:
    """A unit in the line of its partition: how many parts it owes, and finished work that waits."""

    owed: int
    waiting: list[Done] = field(default_factory=list)


class InOrder:
    """The lines of all partitions. Thread-safe. Each `Done` is of one record."""

    def __init__(self, submit: Callable[[Done], None]) -> None:
        """`submit` takes the work; it must not block."""
        self._submit = submit
        self._lock = threading.Lock()
        self._lines: dict[TopicPartition, OrderedDict[int, _InLine]] = {}
        self._places: dict[int, TopicPartition] = {}

    def taken(self, unit: Unit[Any]) -> None:
        """Adds a unit at the end of the line of its partition, before it is offered."""
        with self._lock:
            self._places[unit.id] = unit.at
            self._lines.setdefault(unit.at, OrderedDict())[unit.id] = _InLine(len(unit.owed))

    def done(self, done: Done) -> None:
        """Takes finished work, and hands over what is first in its line now."""
        unit_id = done.parts[0][0]
        with self._lock:
            line = self._lines.get(self._places.get(unit_id, _NOWHERE), OrderedDict())
            if (own := line.get(unit_id)) is None:
                self._submit(done)  # it was revoked, and will be discarded
                return
            own.owed -= len(done.parts)
            own.waiting.append(done)
            while line:
                first = next(iter(line))
                for each in line[first].waiting:
                    self._submit(each)
                line[first].waiting.clear()
                if line[first].owed > 0:
                    return
                del line[first], self._places[first]

    def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Forgets these partitions, and the work that waits in their lines."""
        with self._lock:
            for at in partitions:
                for unit_id in self._lines.pop(at, ()):
                    del self._places[unit_id]


_NOWHERE = TopicPartition("", -1)
