"""The eviction policies by name, that of the searcher among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from bench.baselines.eviction.edgerag import EdgeRag
from bench.baselines.eviction.gdsf import Gdsf
from bench.baselines.eviction.lfu import Lfu
from bench.baselines.eviction.lru import Lru
from bench.baselines.eviction.tiny_lfu import TinyLfu
from searcher.plan.eviction.farthest_next_use import FarthestNextUse
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId

PolicyName = Literal["edgerag", "farthest_next_use", "gdsf", "lfu", "lru", "tiny_lfu"]
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


def make_policy(
    name: PolicyName,
    *,
    size_bytes: Mapping[SliceId, int],
    budget_bytes: int,
    read_latency_us: Mapping[SliceId, int],
) -> CachePolicy:
    """Returns a new policy for all clusters of an index; `size_bytes`: in memory.

    `read_latency_us`: the profile of the index. Where it is empty, `edgerag` counts requests, and
    the cost of `gdsf` is bytes.
    """
    match name:
        case "lru":
            return Lru()
        case "lfu":
            return Lfu()
        case "edgerag":
            return EdgeRag(read_latency_us)
        case "gdsf":
            return Gdsf(read_latency_us or size_bytes, size_bytes)
        case "farthest_next_use":
            return FarthestNextUse()
        case "tiny_lfu":
            return TinyLfu(size_bytes, budget_bytes)
