"""Queries with a bound: they wait until the documents that they name were folded (ADR 0031)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carpool.endings import AskedQuery
from carpool.loop.stage import Done, Unit
from schemas.document import Position
from schemas.group import Group

WAITING_MAX = 64
"""Queries that wait at most; the next one ends as `stale` at once, so a partition never waits."""
WAIT_US = 5_000_000
"""How long a query waits at most. Microseconds."""
LOOK_US = 10_000
"""How often a waiting query looks at the position. Microseconds."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A part of a unit that waits until `late_us`. It holds no snapshot and no credit."""

    unit: Unit[Group]
    part: int
    bound: Position
    late_us: int


class BoundWaits:
    """The queries that wait. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, unit: Unit[Group], part: int, bound: Position, now_us: int) -> bool:
        """Adds a query; False where too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        deadline_us = unit.record.queries[part].deadline_us
        late_us = now_us + WAIT_US if deadline_us is None else min(now_us + WAIT_US, deadline_us)
        self._waiting.append(Waiting(unit, part, bound, late_us))
        return True

    def reached(self, position: Mapping[int, int]) -> list[Waiting]:
        """Removes and returns the queries whose bound was reached."""
        return self._take([is_reached(each.bound, position) for each in self._waiting])

    def late(self, now_us: int) -> list[Waiting]:
        """Removes and returns the queries that have waited for too long."""
        return self._take([now_us >= each.late_us for each in self._waiting])

    def beyond(self, ends: Mapping[int, int]) -> list[Waiting]:
        """Removes and returns the queries whose bound no document has: the log has these `ends`."""
        return self._take(
            [
                any(at >= ends.get(each, 0) for each, at in one.bound.items())
                for one in self._waiting
            ]
        )

    def forget(self, unit_ids: frozenset[int]) -> None:
        """Forgets units."""
        self._waiting = [each for each in self._waiting if each.unit.id not in unit_ids]

    def _take(self, are_taken: list[bool]) -> list[Waiting]:
        taken = [each for each, is_taken in zip(self._waiting, are_taken, strict=True) if is_taken]
        if taken:
            self._waiting = [each for each in self._waiting if each not in taken]
        return taken


def is_reached(bound: Position, position: Mapping[int, int]) -> bool:
    """Returns whether a position has all documents of a bound."""
    return all(position.get(partition, -1) >= offset for partition, offset in bound.items())


def stale(unit: Unit[Group], part: int, position: Mapping[int, int], why: str, now_us: int) -> Done:
    """Returns the end of a query whose bound was not reached."""
    asked = AskedQuery.of(unit, part, stage="searcher")
    bound = unit.record.queries[part].query.bound or {}
    lacking = {each: at for each, at in bound.items() if position.get(each, -1) < at}
    partition = min(lacking, default=0)
    message = (
        f"bound: the documents of partition {partition} up to offset {lacking.get(partition)} were "
        f"not found yet, but those up to {position.get(partition)}: {why}"
    )
    return asked.ended(asked.answer("failed", "stale", message, retryable=True), now_us)


def refused(unit: Unit[Group], part: int, why: str, now_us: int) -> Done:
    """Returns the end of a query whose bound cannot be reached."""
    asked = AskedQuery.of(unit, part, stage="searcher")
    return asked.ended(asked.answer("failed", "invalid_value", f"bound: {why}"), now_us)
