"""The seam to a tracing system: what it is told of units and commits. One implementation is `otel`,
one does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from carpool.loop.stage import Done, Unit


class Tracer(Protocol):
    """Told of every unit, from the record that came in to the commit that ended it. Thread-safe;
    never blocks but in `close`.

    Times are epoch microseconds.
    """

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        """Begins the spans of a unit; returns the `traceparent` of each of its parts, empty where
        none is traced.
        """
        ...

    def polled(self, started_us: int, ended_us: int) -> None:
        """Says that what was opened since the last call came out of one round of polls."""
        ...

    def finished(self, done: Done, now_us: int) -> Done:
        """Takes note of finished work; returns it with the outputs' trace headers set."""
        ...

    def completed(self, done: Done, now_us: int) -> None:
        """Ends the spans of these parts: their outputs are written for good."""
        ...

    def committed(self, started_us: int, ended_us: int) -> None:
        """Says that what was completed since the last call was committed together."""
        ...

    def revoked(self, unit_ids: Iterable[int], now_us: int) -> None:
        """Ends the spans of these units: they are no longer ours."""
        ...

    def close(self) -> None:
        """Exports what is left, for a few seconds at most."""
        ...


class NoTracer:
    """Traces nothing."""

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        """Returns nothing: outputs keep the context of their query."""
        return ()

    def polled(self, started_us: int, ended_us: int) -> None:
        """Does nothing."""

    def finished(self, done: Done, now_us: int) -> Done:
        """Returns the work as it is."""
        return done

    def completed(self, done: Done, now_us: int) -> None:
        """Does nothing."""

    def committed(self, started_us: int, ended_us: int) -> None:
        """Does nothing."""

    def revoked(self, unit_ids: Iterable[int], now_us: int) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
