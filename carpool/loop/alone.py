"""Holds back records that may have killed this service, and chooses which is tried (ADR 0027)."""

from __future__ import annotations

from typing import Any

from carpool.kafka.fencing import FATAL_DEATHS
from carpool.loop.in_flight import InFlight
from carpool.loop.stage import Done, Unit


class AloneUnits:
    """Units that are tried one at a time, with nothing else in hand. For the polling thread."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._waiting: list[Unit[Any]] = []
        self._tried: Unit[Any] | None = None

    def __bool__(self) -> bool:
        """Whether any unit waits or is tried: no other record is taken in."""
        return bool(self._waiting) or self._tried is not None

    def hold(self, unit: Unit[Any]) -> bool:
        """Takes a unit that must be tried alone; False for any other unit."""
        if unit is self._tried or self._in_flight.deaths_of(unit) is None:
            return False
        self._waiting.append(unit)
        return True

    def next(self) -> tuple[Unit[Any], bool] | None:
        """Returns the unit to try now, and whether it must end; None: nothing yet.

        A unit is tried once the commit says that it is in hand alone.
        """
        self._waiting = [unit for unit in self._waiting if self._is_live(unit)]
        if self._tried is not None and self._is_live(self._tried):
            return None
        self._tried = None
        if not self._waiting or self._in_flight.units > len(self._waiting):
            return None
        unit = min(self._waiting, key=lambda each: (each.source.offset, each.id))
        deaths = self._in_flight.deaths_of(unit)
        is_fatal = deaths is not None and deaths.times >= FATAL_DEATHS
        if not is_fatal and not self._in_flight.mark_alone(unit):
            return None
        self._waiting.remove(unit)
        self._tried = unit
        return unit, is_fatal

    def _is_live(self, unit: Unit[Any]) -> bool:
        return self._in_flight.is_live(Done(parts=unit.owed, outputs=()))
