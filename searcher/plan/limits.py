"""Limits of the cluster-major planner."""

from __future__ import annotations

from dataclasses import dataclass

OVERTAKE_US = 50_000
OVERTAKEN_MAX = 100
"""Fewer: the mean wait grows. More: a query with large clusters may wait for a long time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterMajorLimits:
    """Limits of the planner.

    `read_ahead_bytes`: clusters being read or read and not scored yet, for queries in progress; one
    is always allowed. `prefetch_bytes`: the same for clusters that only the horizon wants; 0: none.
    `overtaken_max`: see `Demand`. `overtake_us`: how long scoring waits for the next cluster while
    others are ready.
    """

    budget_bytes: int
    read_ahead_bytes: int
    prefetch_bytes: int
    overtaken_max: int = OVERTAKEN_MAX
    overtake_us: int = OVERTAKE_US
