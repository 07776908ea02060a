"""Holds back records that may have killed this service, and chooses which is tried (ADR 0027)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import structlog

from carpool.kafka.fencing import ALONE_DEATHS, FATAL_DEATHS, QUIET_US
from carpool.loop.in_flight import InFlight
from carpool.loop.stage import Unit
from carpool.telemetry.logs import about

log = structlog.get_logger()


class AloneUnits:
    """Units that are tried one at a time, with nothing else in hand. For the polling thread."""

    def __init__(self, in_flight: InFlight, now_us: int, end: Callable[[Unit[Any]], None]) -> None:
        """`end`: ends the parts of a unit as failed."""
        self._in_flight = in_flight
        self._positions = in_flight.positions
        self._end = end
        self._waiting: list[Unit[Any]] = []
        self._tried: Unit[Any] | None = None
        self._quiet_since_us = now_us

    def __bool__(self) -> bool:
        """Whether any unit waits or is tried: no other record is taken in."""
        return bool(self._waiting) or self._tried is not None

    def hold(self, unit: Unit[Any]) -> bool:
        """Takes a unit that must be tried alone; False for any other unit."""
        is_tried = self._tried is not None and unit.id == self._tried.id
        if is_tried or not self._is_suspect(unit):
            return False
        self._waiting.append(unit)
        log.warning(
            "a record was in hand when processes of this service died: it is tried alone, or ends",
            **about(unit.source, unit.message.headers),
        )
        return True

    def next(self, now_us: int) -> Unit[Any] | None:
        """Returns a suspect that is offered to the stage now, or ends one.

        None: something is still in hand, or not committed.
        """
        units = self._in_flight.units
        self._waiting = [unit for unit in self._waiting if unit.id in units]
        if self._tried is not None and self._tried.id in units:
            return None
        self._tried = None
        if not self._waiting or len(units) > len(self._waiting):
            self._quiet_since_us = now_us
            return None
        unit = min(self._waiting, key=lambda each: (each.source.offset, each.id))
        is_quiet = now_us - self._quiet_since_us >= QUIET_US
        action = self._try(unit, is_quiet)
        if action == "end":
            self._end(unit)
        if action != "wait":
            self._waiting.remove(unit)
            self._tried = unit
        return unit if action == "try" else None

    def _is_suspect(self, unit: Unit[Any]) -> bool:
        with self._positions.lock:
            progress = self._positions.progress.get(unit.at)
            return progress is not None and progress.deaths_of(unit.source.offset) is not None

    def _try(self, unit: Unit[Any], is_quiet: bool) -> Literal["wait", "try", "end"]:
        """Notes that a suspect is in hand alone; it waits until that is committed.

        "end": processes died of it alone. After one such death it waits until `is_quiet`.
        """
        at, offset, moved = unit.at, unit.source.offset, self._positions.moved
        with self._positions.lock:
            progress = self._positions.progress[at]
            deaths = progress.deaths_of(offset)
            if deaths is not None and not deaths.is_alone:
                if deaths.times >= FATAL_DEATHS:
                    return "end"
                if deaths.times > ALONE_DEATHS and not is_quiet:
                    return "wait"
                progress.mark_alone(offset)
                moved.add(at)
            return "wait" if at in moved else "try"
