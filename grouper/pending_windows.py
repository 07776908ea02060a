"""The closed windows that have not left, in the order in which they leave: those of a higher class
before others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grouper.admission import Admitted
from grouper.plan.window import Window
from grouper.work import PreparedWindow


@dataclass(kw_only=True, slots=True, eq=False)
class PendingWindow:
    """A window, its queries less those that are gone, its bytes, and what was made of it.

    `rank`: lower leaves first; `overtaken`: how many windows came later and leave before.
    """

    window: Window
    rank: int
    queries: dict[int, Admitted]
    size_bytes: int
    prepared: PreparedWindow | None = None
    overtaken: int = 0

    def forget(self, unit_ids: frozenset[int]) -> None:
        """Drops these queries, here and in what was made of the window."""
        gone = unit_ids & self.queries.keys()
        for unit_id in gone:
            del self.queries[unit_id]
        if gone and self.prepared is not None:
            self.prepared = self.prepared.only(self.queries.keys())


class PendingWindows:
    """Closed windows: at most one of them is unprepared, at most one, the first, is leaving. Not
    thread-safe.
    """

    def __init__(self, overtaken_max: int) -> None:
        """`overtaken_max`: how many windows may overtake one that is closed."""
        self._overtaken_max = overtaken_max
        self._windows: list[PendingWindow] = []
        self._leaving: PendingWindow | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._windows)

    def __iter__(self) -> Iterator[PendingWindow]:
        """Yields them in the order in which they leave."""
        return iter(tuple(self._windows))

    @property
    def queries(self) -> int:
        """The queries of all windows."""
        return sum(len(held.queries) for held in self._windows)

    @property
    def size_bytes(self) -> int:
        """The bytes of all windows, as they were closed."""
        return sum(held.size_bytes for held in self._windows)

    @property
    def unprepared(self) -> PendingWindow | None:
        """The window that is to be prepared."""
        return next((held for held in self._windows if held.prepared is None), None)

    @property
    def remaining(self) -> list[PendingWindow]:
        """All but the one that is leaving."""
        return [held for held in self._windows if held is not self._leaving]

    def count(self, rank: int) -> int:
        """Returns how many windows leave before one of this rank that would be added now."""
        return sum(held.rank <= rank for held in self._windows)

    def add(self, held: PendingWindow) -> None:
        """Takes a window in: behind those of its rank, before those of higher ones that may be
        overtaken.
        """
        at = len(self._windows)
        while at and self._may_overtake(held, self._windows[at - 1]):
            at -= 1
            self._windows[at].overtaken += 1
        self._windows.insert(at, held)

    def _may_overtake(self, held: PendingWindow, other: PendingWindow) -> bool:
        return (
            other.rank > held.rank
            and other is not self._leaving
            and other.overtaken < self._overtaken_max
        )

    def can_leave(self) -> bool:
        """Returns whether the first is prepared."""
        return bool(self._windows) and self._windows[0].prepared is not None

    def leave(self) -> PreparedWindow:
        """Begins with the first, which is prepared: from now on nothing goes before it, and only
        revocation takes queries.
        """
        self._leaving = self._windows[0]
        assert self._leaving.prepared is not None, "only what is prepared can leave"
        return self._leaving.prepared

    def left(self) -> None:
        """Forgets the one that was leaving."""
        assert self._leaving is self._windows[0], "the first leaves first"
        del self._windows[0]
        self._leaving = None

    def forget(self, unit_ids: frozenset[int]) -> None:
        """Drops these queries wherever they are."""
        for held in self._windows:
            held.forget(unit_ids)

    def has(self, unit_id: int) -> bool:
        """Returns whether this query is in one of the windows."""
        return any(unit_id in held.queries for held in self._windows)

    def check_integrity(self) -> None:
        """Asserts what must hold between two steps."""
        assert sum(held.prepared is None for held in self._windows) <= 1
        assert all(held.overtaken <= self._overtaken_max for held in self._windows)
        assert self._leaving is None or self._leaving is self._windows[0]
