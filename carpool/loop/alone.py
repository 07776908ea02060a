"""Holds back records that may have killed this service, and chooses which is tried (ADR 0027)."""

from __future__ import annotations

from typing import Any, Literal

from carpool.kafka.fencing import QUIET_US
from carpool.loop.in_flight import InFlight
from carpool.loop.stage import Done, Unit


class AloneUnits:
    """Units that are tried one at a time, with nothing else in hand. For the polling thread."""

    def __init__(self, in_flight: InFlight, now_us: int) -> None:
        self._in_flight = in_flight
        self._waiting: list[Unit[Any]] = []
        self._tried: Unit[Any] | None = None
        self._quiet_since_us = now_us

    def __bool__(self) -> bool:
        """Whether any unit waits or is tried: no other record is taken in."""
        return bool(self._waiting) or self._tried is not None

    def hold(self, unit: Unit[Any]) -> bool:
        """Takes a unit that must be tried alone; False for any other unit."""
        if unit is self._tried or not self._in_flight.is_suspect(unit):
            return False
        self._waiting.append(unit)
        return True

    def next(self, now_us: int) -> tuple[Unit[Any], Literal["try", "end"]] | None:
        """Returns a suspect that is offered to the stage now, or that ends as failed.

        None: something is still in hand, or not committed.
        """
        self._waiting = [unit for unit in self._waiting if self._is_live(unit)]
        if self._tried is not None and self._is_live(self._tried):
            return None
        self._tried = None
        if not self._waiting or self._in_flight.units > len(self._waiting):
            self._quiet_since_us = now_us
            return None
        unit = min(self._waiting, key=lambda each: (each.source.offset, each.id))
        is_quiet = now_us - self._quiet_since_us >= QUIET_US
        action = self._in_flight.try_alone(unit, is_quiet=is_quiet)
        if action == "wait":
            return None
        self._waiting.remove(unit)
        self._tried = unit
        return unit, action

    def _is_live(self, unit: Unit[Any]) -> bool:
        return self._in_flight.is_live(Done(parts=unit.owed, outputs=()))
