"""The seam to a tracing system. This tracer does nothing; `otel` makes spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from carpool.loop.stage import Done, Unit
from schemas.record import TRACEPARENT, Headers


class Tracer:
    """Notes every unit, from its record to its commit. Traces nothing.

    Thread-safe; only `close` blocks. Times are epoch microseconds.
    """

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        """Begins the spans of a unit; returns the `traceparent` of each part; empty: no traces."""
        return ()

    def finished(self, done: Done, now_us: int) -> Done:
        """Notes finished work; returns it with trace headers in its outputs."""
        return done

    def completed(self, done: Done, now_us: int) -> None:
        """Ends the spans of these parts: their outputs are committed."""

    def revoked(self, unit_ids: Iterable[int], now_us: int) -> None:
        """Ends the spans of revoked units."""

    def close(self) -> None:
        """Exports what is left, for a few seconds at most."""


def with_traceparent(headers: Headers, traceparent: str) -> Headers:
    """Returns `headers` with this `traceparent` instead of any other."""
    others = tuple(pair for pair in headers if pair[0] != TRACEPARENT)
    return (*others, (TRACEPARENT, traceparent.encode()))
