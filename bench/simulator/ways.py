"""The ways of searching that are compared: ours by cluster, and the published ones query by
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.baselines.published import SIMILARITY_MIN
from bench.baselines.read_planner import PrefetchMode
from bench.simulator.trace import Clusters, Window
from grouper.plan.grouping import grouping_policy
from grouper.plan.order import group_order
from grouper.plan.plan_groups import plan_groups
from searcher.plan.eviction.policies import PolicyName

Groups = tuple[tuple[int, ...], ...]
"""Positions in a window, of each group in the order of search."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """`grouping` and `prefetch` are of the published ways; by cluster a window is one group, and
    the horizon is read ahead.
    """

    name: str
    by_cluster: bool
    policy: PolicyName
    grouping: Literal["per_query", "greedy", "agglomerative"] = "per_query"
    prefetch: PrefetchMode = "none"

    @property
    def reads_depend_on_time(self) -> bool:
        """Whether two real runs may read differently much: a published prefetch begins when the
        disk happens to be idle.
        """
        return self.prefetch != "none"

    def groups(self, window: Window) -> Groups:
        """Returns the groups in which `window` is searched."""
        if self.by_cluster:
            return (tuple(range(len(window))),)
        policy = grouping_policy(
            self.grouping, jaccard_similarity_min=SIMILARITY_MIN, linkage="complete"
        )
        return plan_groups(
            window, before=(), deadlines=(), policy=policy, order=group_order("arrival")
        )


def next_queries(window: Window, groups: Groups) -> Sequence[Clusters]:
    """Returns, for each group, the clusters of the first query of the group after it (CaGR-RAG, Eq.
    4); none for the last.
    """
    return [window[following[0]] for following in groups[1:]] + [()]


WAYS = {
    way.name: way
    for way in (
        Way(name="carpool", by_cluster=True, policy="farthest_next_use"),
        Way(name="edgerag", by_cluster=False, policy="edgerag"),
        Way(name="cagr-greedy", by_cluster=False, policy="edgerag", grouping="greedy"),
        Way(
            name="cagr-agglomerative", by_cluster=False, policy="edgerag", grouping="agglomerative"
        ),
        Way(
            name="cagr-literal-greedy",
            by_cluster=False,
            policy="edgerag",
            grouping="greedy",
            prefetch="after_group",
        ),
        Way(
            name="cagr-best-greedy",
            by_cluster=False,
            policy="edgerag",
            grouping="greedy",
            prefetch="overlapped",
        ),
    )
}
"""By name; as the contestants of `carpool bench search` that are called so."""
