"""How long is a sub-stage of scoring? Long against its overhead, short for queries that join."""

from __future__ import annotations

import math

ROW_COST = 12
"""Reading a row from memory costs as much as multiplying it with this many queries."""
LONE_US = 20_000
"""Least length of a sub-stage while one query is in progress: time to score its own clusters."""
TOGETHER_US = 2_000
"""Least length while several queries are in progress. A break between two sub-stages costs half a
millisecond, and Eq. 1 gives less than that for very short retrievals.
"""
SMOOTHING = 0.1
"""Weight of the newest measurement."""


class SubstageBudget:
    """HedraRAG's time budget of a sub-stage (section 4.2, Eq. 1), from measured times.

    Deviation: as printed, the gain (t - mb) / 2 + (t / mb) * beta has no maximum as mb goes to 0.
    The overhead of t / mb sub-stages is a loss. With a minus sign the gain is largest at mb =
    sqrt(2 * beta * t). `beta`: overhead of a sub-stage; `t`: time of a retrieval. All times in
    microseconds, smoothed exponentially.
    """

    def __init__(
        self, *, beta_us: float = 500.0, retrieval_us: float = 50_000.0, ns_per_work: float = 8.0
    ) -> None:
        """Starts with estimates; measurements correct them."""
        self._beta_us = beta_us
        self._retrieval_us = retrieval_us
        self._ns_per_work = ns_per_work

    @property
    def budget_us(self) -> int:
        """How long the next sub-stage should take."""
        return round(math.sqrt(2 * self._beta_us * self._retrieval_us))

    def budget_us_for(self, queries: int) -> int:
        """Returns how long the next sub-stage should take, with `queries` in progress.

        Eq. 1 counts the gain of queries that join after the sub-stage. A query alone has no such
        gain and pays for each break, so its sub-stage takes at least `LONE_US`; a query that
        arrives meanwhile waits that long at most. With several queries the least is `TOGETHER_US`.
        """
        return max(self.budget_us, TOGETHER_US if queries > 1 else LONE_US)

    def cost_us(self, rows: int, queries: int) -> int:
        """Returns how long it is likely to take to score a cluster of `rows` rows for `queries`
        queries.
        """
        return round(_work(rows, queries) * self._ns_per_work / 1_000)

    def retrieved(self, took_us: int) -> None:
        """A query took this long from joining to its last cluster."""
        self._retrieval_us += SMOOTHING * (max(1, took_us) - self._retrieval_us)

    def scored(self, tasks: tuple[tuple[int, int], ...], took_us: int) -> None:
        """A sub-stage of `tasks`, (rows, queries) each, was scored in this time."""
        work = sum(_work(rows, queries) for rows, queries in tasks)
        if work:
            self._ns_per_work += SMOOTHING * (took_us * 1_000 / work - self._ns_per_work)

    def scheduled(self, took_us: int) -> None:
        """The overhead of a sub-stage, outside scoring, was this long."""
        self._beta_us += SMOOTHING * (max(1, took_us) - self._beta_us)


def _work(rows: int, queries: int) -> int:
    return rows * (ROW_COST + queries)
