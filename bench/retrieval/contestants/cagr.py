"""CaGR-RAG and EdgeRAG as published, with our reader and scorer, so that only the algorithm
differs.

All search query by query with EdgeRAG's cache (CaGR-RAG, section 4 builds on it). The paper
contradicts itself in two places, and both readings take part. *Groups*: `greedy` is Algorithm 1 to
the letter (similar to one member), `agglomerative` is Eq. 3 (similar to all members). *Prefetching*
the clusters of the next group's first query: `cagr-literal` begins after the last search of a
group, as Algorithm 1 prints it; `cagr-best` overlaps the group's searches, pins what it read until
it is used, and shares reads in flight. Without prefetching the two are one: `cagr-greedy`,
`cagr-agglomerative`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bench.retrieval.contestant import Contestant, Dataset, Entry, Limits
from bench.retrieval.contestants.carpool import Carpool

if TYPE_CHECKING:
    from grouper.plan.grouping import GroupingPolicy
    from grouper.plan.order import GroupOrder
    from searcher.executor import Executor, Finish, SearchGroup

SIMILARITY_MIN = 0.5
"""The paper's theta, section 5.1."""

Grouping = Literal["greedy", "agglomerative", "per_query"]
Prefetch = Literal["none", "after_group", "overlapped"]


class GroupedExecutor:
    """An `Executor` before which each window is cut into groups, in the order of their first
    members (Algorithm 1).
    """

    def __init__(self, executor: Executor, policy: GroupingPolicy, order: GroupOrder) -> None:
        self._executor = executor
        self._policy = policy
        self._order = order

    def join(self, group: SearchGroup) -> None:
        """Takes in a window: its groups, each with the clusters of the first query of the next
        one.
        """
        from grouper.plan.plan_groups import plan_groups

        clusters = [search.clusters for search in group.searches]
        groups = plan_groups(
            clusters, before=(), deadlines=(), policy=self._policy, order=self._order
        )
        for members, following in zip(groups, [*groups[1:], ()], strict=True):
            self._executor.join(
                replace(
                    group,
                    searches=tuple(group.searches[member] for member in members),
                    next_query=clusters[following[0]] if following else (),
                )
            )

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches."""
        self._executor.drop(keys)

    def run(self, finish: Finish) -> None:
        """Searches until `stop`."""
        self._executor.run(finish)

    def stop(self) -> None:
        """Lets `run` return."""
        self._executor.stop()

    def check_integrity(self) -> None:
        """Checks the books of the executor."""
        self._executor.check_integrity()


class Published(Carpool):
    """Query by query in groups. Planning the groups of a window is part of the measured time."""

    def __init__(self, name: str, *, grouping: Grouping, prefetch: Prefetch) -> None:
        super().__init__(
            name,
            horizon_windows=0,
            query_by_query=prefetch,
            cache_policy="edgerag",
        )
        self._grouping = grouping

    def open(self, dataset: Dataset, limits: Limits) -> None:
        """Opens the plane, and puts the grouping in front of it."""
        from grouper.plan.grouping import grouping_policy
        from grouper.plan.order import group_order

        policy = grouping_policy(
            self._grouping, jaccard_similarity_min=SIMILARITY_MIN, linkage="complete"
        )
        policy.group(np.eye(2))  # so that what it imports is there before the budget is reckoned
        super().open(dataset, limits)
        assert self._plane is not None
        executor = GroupedExecutor(self._plane.executor, policy, group_order("arrival"))
        self._plane = replace(self._plane, executor=executor)


def _entry(name: str, summary: str, **options: Any) -> Entry:
    def make() -> Contestant:
        return Published(name, **options)

    return Entry(name=name, summary=summary, is_exact=True, has_cache_budget=True, make=make)


ENTRIES: tuple[Entry, ...] = (
    _entry(
        "edgerag",
        "EdgeRAG: one query after the other in order of arrival, evicts by read latency x count",
        grouping="per_query",
        prefetch="none",
    ),
    _entry(
        "cagr-greedy",
        "CaGR-RAG without prefetching, groups by Algorithm 1",
        grouping="greedy",
        prefetch="none",
    ),
    _entry(
        "cagr-agglomerative",
        "CaGR-RAG without prefetching, groups by Eq. 3",
        grouping="agglomerative",
        prefetch="none",
    ),
    *(
        _entry(
            f"cagr-{reading}-{grouping}",
            f"CaGR-RAG, groups by {source}, prefetching {when}",
            grouping=grouping,
            prefetch=prefetch,
        )
        for reading, prefetch, when in (
            ("literal", "after_group", "after a group's last search, as printed"),
            ("best", "overlapped", "during a group's searches, pinned until used"),
        )
        for grouping, source in (("greedy", "Algorithm 1"), ("agglomerative", "Eq. 3"))
    ),
)
