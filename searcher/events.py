"""The interface through which a test or a benchmark observes reads and scorings."""

from __future__ import annotations

from typing import Literal, Protocol

from schemas.record import ClusterId

Purpose = Literal["demand", "prefetch"]
"""Why a cluster is read: for a query in progress, or ahead."""


class EventLog(Protocol):
    """Called at the end of each read and scoring; times in epoch microseconds. Thread-safe; does
    not block.
    """

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        """A read of `cluster` ended or failed."""
        ...

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """A cluster was scored for one query."""
        ...


class NoEvents:
    """Ignores all events."""

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        """Does nothing."""

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """Does nothing."""
