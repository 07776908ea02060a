"""The closed windows that have not left, in the order in which they leave."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from grouper.plan.window import Window


@dataclass(kw_only=True, slots=True, eq=False)
class PendingWindow:
    """A closed window. `query_ids`: its queries that have not ended, in arrival order.

    `rank`: a lower rank leaves first. `size_bytes`: of its queries when it was closed.
    `overtaken`: how many windows were closed later and leave earlier.
    """

    window: Window
    rank: int
    query_ids: tuple[int, ...]
    size_bytes: int
    is_prepared: bool = False
    overtaken: int = 0


class PendingWindows:
    """At most one window is unprepared, and at most one, the first, is leaving. Not thread-safe."""

    def __init__(self, overtaken_max: int) -> None:
        """`overtaken_max`: how many windows may overtake one that is closed."""
        self._overtaken_max = overtaken_max
        self._windows: list[PendingWindow] = []
        self._leaving: PendingWindow | None = None

    @property
    def all(self) -> tuple[PendingWindow, ...]:
        """The windows in the order in which they leave."""
        return tuple(self._windows)

    @property
    def size_bytes(self) -> int:
        """The bytes of all windows when they were closed."""
        return sum(pending.size_bytes for pending in self._windows)

    @property
    def unprepared(self) -> PendingWindow | None:
        """The window to prepare next."""
        return next((pending for pending in self._windows if not pending.is_prepared), None)

    @property
    def remaining(self) -> list[PendingWindow]:
        """The windows without the one that is leaving."""
        return [pending for pending in self._windows if pending is not self._leaving]

    @property
    def leaving_ids(self) -> frozenset[int]:
        """The queries of the window that is leaving."""
        return frozenset(self._leaving.query_ids) if self._leaving is not None else frozenset()

    def count(self, rank: int) -> int:
        """Returns how many windows leave before one of this rank that would be added now."""
        return sum(pending.rank <= rank for pending in self._windows)

    def add(self, added: PendingWindow) -> None:
        """Adds a window behind those of its rank, and before those of higher ranks.

        A window that is leaving, or was overtaken `overtaken_max` times, is not overtaken.
        """
        at = len(self._windows)
        while at and self._may_overtake(added, self._windows[at - 1]):
            at -= 1
            self._windows[at].overtaken += 1
        self._windows.insert(at, added)

    def _may_overtake(self, added: PendingWindow, other: PendingWindow) -> bool:
        return (
            other.rank > added.rank
            and other is not self._leaving
            and other.overtaken < self._overtaken_max
        )

    def can_leave(self) -> bool:
        """Returns whether the first window is prepared and none is leaving."""
        return bool(self._windows) and self._leaving is None and self._windows[0].is_prepared

    def leave(self) -> PendingWindow:
        """Returns the first window; from now on no window overtakes it."""
        self._leaving = self._windows[0]
        assert self._leaving.is_prepared, "only a prepared window can leave"
        return self._leaving

    def left(self) -> PendingWindow:
        """Removes the window that was leaving, and returns it."""
        assert self._leaving is self._windows[0], "the first leaves first"
        self._leaving = None
        return self._windows.pop(0)

    def forget(self, query_ids: Set[int]) -> None:
        """Removes these queries from their windows."""
        for pending in self._windows:
            if not query_ids.isdisjoint(pending.query_ids):
                pending.query_ids = tuple(
                    query_id for query_id in pending.query_ids if query_id not in query_ids
                )

    def check_integrity(self) -> None:
        """Asserts what must hold between two steps."""
        assert sum(not pending.is_prepared for pending in self._windows) <= 1
        assert all(pending.overtaken <= self._overtaken_max for pending in self._windows)
        assert self._leaving is None or self._leaving is self._windows[0]
