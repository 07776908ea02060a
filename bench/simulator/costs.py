"""What computing takes on virtual time: scoring a cluster for some queries, and everything that is done around it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

ROW_COST = 12.0
"""Scoring a row costs about as much as this many queries: it has to come from memory, whoever wants it."""


class ComputeCosts(msgspec.Struct, frozen=True, kw_only=True):
    """All from measurements on the machine that is to be simulated, microseconds of the search thread but for the first.

    `work_ns`: for a row and a query (with `ROW_COST`, on as many threads as there will be); `cluster_us`: for a cluster, whatever
    its size; `turn_us`: around the scoring of a sub-stage, beside what follows; `join_us`: to take in a window; `read_us`: to
    hand a cluster's read to the store; `event_us`: to take in the end of a read; `answer_us`: to hand out an answer;
    `arrival_us`: from the last answer to the arrival of the next window, in a closed loop.
    """

    work_ns: float
    cluster_us: float = 30.0
    turn_us: float = 300.0
    join_us: float = 500.0
    read_us: float = 50.0
    event_us: float = 50.0
    answer_us: float = 20.0
    arrival_us: float = 100.0

    def scoring_us(self, tasks: Iterable[tuple[int, int]]) -> float:
        """Returns how long it takes to score `tasks`: (rows, queries) of each cluster."""
        return sum(rows * (ROW_COST + queries) * self.work_ns / 1_000 + self.cluster_us for rows, queries in tasks)
