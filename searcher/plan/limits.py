"""What bounds the cluster-major planner."""

from __future__ import annotations

from dataclasses import dataclass

OVERTAKE_US = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterMajorLimits:
    """What bounds the planner.

    `read_ahead_bytes`: clusters being read or read and not scored yet, for queries in hand; one is
    always allowed. `prefetch_bytes`: the same for clusters that only the horizon wants; 0 turns
    that off. `overtaken_max`: see `Demand`. `overtake_us`: how long scoring waits for the cluster
    whose turn it is while others are there.
    """

    budget_bytes: int
    read_ahead_bytes: int
    prefetch_bytes: int
    overtaken_max: int = 100
    overtake_us: int = OVERTAKE_US
