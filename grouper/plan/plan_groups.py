"""Which queries of a window share a group, and in which order do the groups leave?"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

from grouper.plan.jaccard import similar_groups

Groups = tuple[tuple[int, ...], ...]
"""Groups of a window as positions in it: a partition. Members are in order of arrival."""

PolicyName = Literal["per_window", "greedy"]


def plan_groups(
    clusters: Sequence[Sequence[int]],
    deadlines: Sequence[int],
    *,
    policy: PolicyName,
    jaccard_similarity_min: float,
) -> Groups:
    """Returns the groups in the order in which they leave, as positions in `clusters`.

    `clusters`: C(q) of each query, in order of arrival; `deadlines`: the positions of the queries
    that have one, ascending. `per_window`: one group. The searcher reads each cluster once for all
    queries in progress, so smaller groups save no reads there, and each record costs time.
    `greedy`: CaGR-RAG's, whose prefetch begins at the end of a group.
    """
    if policy == "per_window":
        return (tuple(range(len(clusters))),) if clusters else ()
    groups = similar_groups(clusters, jaccard_similarity_min=jaccard_similarity_min)
    return by_arrival(groups, deadlines)


def by_arrival(groups: Groups, deadlines: Sequence[int]) -> Groups:
    """Returns the groups by first query, as in Algorithm 1 of CaGR-RAG.

    A deadline is never overtaken: a query that has one leaves before every query of its window that
    arrived later. If two groups would have to wait for each other, one is cut: its later part is a
    group of its own. O(n log n).
    """
    pending = list(groups)
    heapify(pending)
    later = iter(deadlines)
    limit = next(later, None)  # the first remaining query with a deadline: no later one may leave
    ordered = []
    while pending:
        members = heappop(pending)
        taken = 0
        for member in members:
            if limit is not None and member > limit:
                heappush(pending, members[taken:])
                break
            taken += 1
            if member == limit:
                limit = next(later, None)
        # The first member of the first group is the first remaining query, so it may leave.
        ordered.append(members[:taken])
    return tuple(ordered)
