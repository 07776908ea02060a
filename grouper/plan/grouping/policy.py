"""The interface of grouping policies, and their list."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from grouper.plan.grouping.greedy import Greedy
from grouper.plan.grouping.per_query import PerQuery
from grouper.plan.grouping.per_window import PerWindow

Groups = tuple[tuple[int, ...], ...]
"""Groups of a window as positions in it: a partition. Policies give groups by first member, members
in arrival order.
"""

PolicyName = Literal["per_window", "greedy", "agglomerative", "per_query"]
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)

LinkageName = Literal["complete", "average", "single"]
LINKAGE_NAMES: tuple[LinkageName, ...] = get_args(LinkageName)


class GroupingPolicy(Protocol):
    """Partitions a window. Deterministic and stateless."""

    @property
    def name(self) -> PolicyName:
        """The name that settings and figures use."""
        ...

    def group(self, similarity: NDArray[np.float64]) -> Groups:
        """Returns the groups of a window. `similarity`: (n, n) float64, Eq. 2, by arrival."""
        ...


def grouping_policy(
    name: PolicyName, *, jaccard_similarity_min: float, linkage: LinkageName = "complete"
) -> GroupingPolicy:
    """Returns the policy `name`; `jaccard_similarity_min` is the theta of the paper.

    `linkage` is for `agglomerative` alone. Only that policy imports scikit-learn, to save memory.
    """
    match name:
        case "per_window":
            return PerWindow()
        case "greedy":
            return Greedy(jaccard_similarity_min=jaccard_similarity_min)
        case "agglomerative":
            from grouper.plan.grouping.agglomerative import Agglomerative

            return Agglomerative(jaccard_similarity_min=jaccard_similarity_min, linkage=linkage)
        case "per_query":
            return PerQuery()
