"""When the queries of a trace arrive on virtual time: one window outstanding, or a Poisson stream.
And what is foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench.simulator.trace import Clusters, Trace
from schemas.record import ClusterId


class Arrived(NamedTuple):
    """Queries that are searched together from now on: (number, when it arrived, C(q)) of each, and
    the horizon behind them.
    """

    queries: tuple[tuple[int, float, Clusters], ...]
    horizon: dict[ClusterId, int]


class Arrivals(Protocol):
    """Where a simulation takes its queries from."""

    def take(self, now_us: float, in_hand: int) -> Arrived | None:
        """Returns what is searched from now on, None when nothing is there, or `in_hand` queries
        are enough.
        """
        ...

    def next_us(self) -> float | None:
        """Returns when the next query arrives, as far as that is known; None when none will, or it
        depends on answers.
        """
        ...


def soonest(windows: Sequence[Sequence[Clusters]]) -> dict[ClusterId, int]:
    """Returns in how many windows each cluster is wanted next; 1 is the first of `windows`."""
    found: dict[ClusterId, int] = {}
    for number, window in enumerate(windows, start=1):
        for clusters in window:
            for cluster in clusters:
                found.setdefault(cluster, number)
    return found


class ClosedLoop:
    """The next window arrives `arrival_us` after the last query of the one before was answered. All
    windows wait in the log.
    """

    def __init__(self, trace: Trace, *, windows_ahead: int, arrival_us: float) -> None:
        self._trace = trace
        self._windows_ahead = windows_ahead
        self._arrival_us = arrival_us
        self._taken = 0
        self._numbered = 0
        self._due_us: float | None = 0.0

    def take(self, now_us: float, in_hand: int) -> Arrived | None:
        """Returns the next window when all queries are answered, and its time has come."""
        if in_hand or self._taken == len(self._trace.windows):
            return None
        if self._due_us is None:
            self._due_us = now_us + self._arrival_us
        if now_us < self._due_us:
            return None
        window = self._trace.windows[self._taken]
        queries = tuple(
            (self._numbered + at, self._due_us, clusters) for at, clusters in enumerate(window)
        )
        self._numbered += len(queries)
        self._taken += 1
        self._due_us = None
        return Arrived(
            queries, soonest(self._trace.windows[self._taken : self._taken + self._windows_ahead])
        )

    def next_us(self) -> float | None:
        """Returns when the window arrives that the last answer called for."""
        return self._due_us if self._taken < len(self._trace.windows) else None


class OpenLoop:
    """Queries arrive when they are due. What has arrived leaves in windows, as many as fit
    `in_hand_max` queries.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        due_us: npt.NDArray[np.float64],
        window: int,
        windows_ahead: int,
        in_hand_max: int,
    ) -> None:
        """`due_us`: (queries,) float64, ascending: when each query of the trace arrives."""
        self._queries = [clusters for window_ in trace.windows for clusters in window_]
        self._due_us = due_us.tolist()
        assert len(self._due_us) == len(self._queries), (
            f"{len(self._due_us)} arrivals for {len(self._queries)} queries"
        )
        self._window = window
        self._windows_ahead = windows_ahead
        self._in_hand_max = in_hand_max
        self._taken = 0
        self._is_blocked = False

    def take(self, now_us: float, in_hand: int) -> Arrived | None:
        """Returns a window of what has arrived; its horizon is what waits behind it."""
        arrived = self._arrived(now_us)
        count = min(arrived - self._taken, self._window, self._in_hand_max - in_hand)
        self._is_blocked = count <= 0 and arrived > self._taken
        if count <= 0:
            return None
        first, self._taken = self._taken, self._taken + count
        queries = tuple(
            (at, self._due_us[at], self._queries[at]) for at in range(first, self._taken)
        )
        last = min(arrived, self._taken + self._windows_ahead * self._window)
        behind = [
            self._queries[at : min(at + self._window, last)]
            for at in range(self._taken, last, self._window)
        ]
        return Arrived(queries, soonest(behind))

    def next_us(self) -> float | None:
        """Returns when the next query arrives; None while those that have arrived wait for
        answers.
        """
        if self._taken == len(self._queries) or self._is_blocked:
            return None
        return float(self._due_us[self._taken])

    def _arrived(self, now_us: float) -> int:
        arrived = self._taken
        while arrived < len(self._due_us) and self._due_us[arrived] <= now_us:
            arrived += 1
        return arrived


def poisson_due_us(count: int, rate_per_s: float, seed: int) -> npt.NDArray[np.float64]:
    """Returns when `count` queries of a Poisson stream arrive: (count,) float64, ascending."""
    return np.cumsum(np.random.default_rng(seed).exponential(1e6 / rate_per_s, count))
