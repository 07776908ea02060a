"""How long should a sub-stage be? Long enough to be worth its overhead, short enough that new
queries soon join.
"""

from __future__ import annotations

import math

ROW_COST = 12
"""Scoring a row costs about as much as this many queries: it has to come from memory, whoever wants
it.
"""
LONE_US = 20_000
"""A sub-stage of a query that is alone in hand: its own clusters, a third of a GB from memory."""
TOGETHER_US = 2_000
"""A sub-stage of queries whose clusters all take no longer: to go on after a break takes half a
millisecond, whatever Eq. 1 makes of so short a retrieval.
"""
SMOOTHING = 0.1
"""Weight of the newest measurement."""


class SubstageBudget:
    """HedraRAG's time budget of a sub-stage (section 4.2, Eq. 1), from measured times.

    As printed, the gain (t - mb) / 2 + (t / mb) * beta grows without bound as mb goes to 0. The
    overhead of t / mb sub-stages is a loss: with a minus sign before it the gain is largest at mb =
    sqrt(2 * beta * t). `beta`: overhead of a sub-stage; `t`: time of a retrieval. All times in
    microseconds, smoothed exponentially.
    """

    def __init__(
        self, *, beta_us: float = 500.0, retrieval_us: float = 50_000.0, ns_per_work: float = 8.0
    ) -> None:
        """The first guesses; each measurement moves them."""
        self._beta_us = beta_us
        self._retrieval_us = retrieval_us
        self._ns_per_work = ns_per_work

    @property
    def budget_us(self) -> int:
        """How long the next sub-stage should take."""
        return round(math.sqrt(2 * self._beta_us * self._retrieval_us))

    def budget_us_for(self, queries: int) -> int:
        """How long it should take with so many queries in hand.

        Eq. 1 counts what those gain who come meanwhile. Where queries come one by one there are
        none, and every break costs the one in hand: half a millisecond of ten. Whoever comes all
        the same waits for `LONE_US` at most. Where some are in hand a break must be worth its
        while, too: not before `TOGETHER_US`.
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
        """Everything around the scoring of a sub-stage took this long."""
        self._beta_us += SMOOTHING * (max(1, took_us) - self._beta_us)


def _work(rows: int, queries: int) -> int:
    return rows * (ROW_COST + queries)
