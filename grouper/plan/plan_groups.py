"""The plan of a window in one call: which queries share a group, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from grouper.plan.grouping import GroupingPolicy, Groups
from grouper.plan.jaccard import jaccard_matrix
from grouper.plan.order import GroupOrder

BEFORE_QUERIES = 20
"""How many earlier queries the order of the next window considers."""


def plan_groups(
    clusters: Sequence[Sequence[int]],
    *,
    before: Sequence[Sequence[int]],
    deadlines: Sequence[int],
    policy: GroupingPolicy,
    order: GroupOrder,
) -> Groups:
    """Returns the groups in the order in which they leave, as positions in `clusters`.

    `clusters`: C(q) of each query, in order of arrival; `before`: C(q) of those that left last,
    oldest first; `deadlines`: the positions of the queries that have one, ascending. One Jaccard
    matrix, then the policy, then the order.
    """
    if len(clusters) < 2:
        return tuple((position,) for position in range(len(clusters)))
    similarity = jaccard_matrix([*before, *clusters])
    window = similarity[len(before) :, len(before) :]
    return order.order(
        policy.group(window), window, similarity[: len(before), len(before) :], deadlines
    )
