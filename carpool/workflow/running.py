"""The records of a service whose programs are being run, from their question to what follows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from carpool.loop.stage import Credit, Unit
from carpool.workflow.program import Ran
from carpool.workflow.workflows import Workflows
from schemas.query import Query


class RunningPrograms:
    """See the module. Thread-safe.

    What follows a program runs under a lock, so a unit is either here or where that has put it.
    Never call this with a lock that what follows takes.
    """

    def __init__(self, workflows: Workflows, charge: Callable[[int, Exception], None]) -> None:
        """`charge` gets the id of a unit, and an unexpected error of what follows its program."""
        self._workflows = workflows
        self._charge = charge
        self._lock = threading.RLock()
        self._running: dict[int, tuple[Unit[Any], int | None]] = {}  # with their deadlines

    def ask(
        self, unit: Unit[Any], query: Query, deadline_us: int | None, then: Callable[[Ran], None]
    ) -> None:
        """Runs the program of a workflow; `then` gets the result, unless the unit is withdrawn.

        A built-in program or a graph runs at once. `then` may run on another thread.
        """
        with self._lock:
            self._running[unit.id] = unit, deadline_us
            follow = partial(self._follow, unit.id, then)
            self._workflows.ask(query, follow, lambda: unit.id in self._running)

    def withdraw(self, unit_id: int) -> Unit[Any] | None:
        """Forgets a unit, and returns it; None: it is not here."""
        with self._lock:
            unit, _ = self._running.pop(unit_id, (None, None))
            return unit

    def forget(self, unit_ids: Iterable[int]) -> None:
        """Forgets units that were revoked."""
        for unit_id in unit_ids:
            self.withdraw(unit_id)

    def late(self, now_us: int) -> list[Unit[Any]]:
        """Forgets the units whose deadline has passed, and returns them."""
        with self._lock:
            late = [
                unit
                for unit, deadline_us in self._running.values()
                if deadline_us is not None and deadline_us <= now_us
            ]
            self.forget(unit.id for unit in late)
            return late

    @property
    def records(self) -> int:
        """The units that are here."""
        return len(self._running)

    def left_of(self, records: int, size_bytes: int) -> Credit:
        """Returns what the units that are here leave of so many records and bytes."""
        with self._lock:
            ours_bytes = sum(unit.message.size_bytes for unit, _ in self._running.values())
            return Credit(
                records=max(0, records - len(self._running)),
                size_bytes=max(0, size_bytes - ours_bytes),
            )

    def _follow(self, unit_id: int, then: Callable[[Ran], None], ran: Ran) -> None:
        with self._lock:
            if self.withdraw(unit_id) is None:
                return
            try:
                then(ran)
            except Exception as error:
                self._charge(unit_id, error)
