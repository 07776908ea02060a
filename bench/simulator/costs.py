"""What computing takes on virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class SliceTask(NamedTuple):
    """A slice that is scored: its rows, and for how many queries."""

    rows: int
    queries: int


class ComputeCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the search thread.

    Scoring: `task_us` for a slice, `row_ns` for a row that is loaded from memory, `product_ns` for
    a row and a query, all multiplied by `scoring_scale`. Around it: `turn_us` for a sub-stage
    (planning, merging, answers), `join_us` to take in a window, `arrival_us` from the last answer
    to the next window.
    """

    scoring_scale: float = 1.0
    task_us: float = 30.0
    row_ns: float = 100.0
    product_ns: float = 10.0
    turn_us: float = 300.0
    join_us: float = 500.0
    arrival_us: float = 100.0

    def scoring_us(self, tasks: Iterable[SliceTask]) -> float:
        """Returns how long it takes to score a sub-stage."""
        return self.scoring_scale * sum(
            self.task_us + task.rows * (self.row_ns + task.queries * self.product_ns) / 1_000
            for task in tasks
        )
