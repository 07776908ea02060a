"""The seam through which a test or a benchmark watches reads and scoring, each with its beginning
and end.
"""

from __future__ import annotations

from typing import Literal, Protocol

from schemas.record import ClusterId

Purpose = Literal["demand", "prefetch"]
"""Why a cluster is read: a query waits for it, or a later one will."""


class EventLog(Protocol):
    """Told of every read and every scoring once it is over; times in epoch microseconds.
    Thread-safe, does not block.
    """

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        """A read of `cluster` ended, well or not."""
        ...

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """A cluster was scored for one query."""
        ...


class NoEvents:
    """Listens to nothing."""

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        """Does nothing."""

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """Does nothing."""
