"""The interface of group orders, and their list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from grouper.plan.grouping import Groups
from grouper.plan.order.arrival import ByArrival
from grouper.plan.order.nearest_chain import NearestChain

OrderName = Literal["arrival", "nearest_chain"]
ORDER_NAMES: tuple[OrderName, ...] = get_args(OrderName)


class GroupOrder(Protocol):
    """Orders the groups of a window and the queries in them. Deterministic, without state.

    A deadline is never overtaken: a query that has one leaves before every query of its window that
    arrived later, with any deadline or without. It may itself leave before earlier queries. A
    window in which all queries have deadlines leaves in the order of arrival. If two groups would
    have to wait for each other, one is cut: its later part is a group of its own.
    """

    @property
    def name(self) -> OrderName:
        """The name that settings and figures use."""
        ...

    def order(
        self,
        groups: Groups,
        similarity: NDArray[np.float64],
        before: NDArray[np.float64],
        deadlines: Sequence[int],
    ) -> Groups:
        """Returns `groups` and their members in the order in which they leave.

        `groups`: a partition of n positions, members ascending. `similarity`: (n, n) float64, Eq. 2
        of each pair. `before`: (m, n) float64, the similarity to each of the m queries that left
        last, oldest first; m >= 0. `deadlines`: the positions of the queries with a deadline,
        ascending.
        """
        ...


def group_order(name: OrderName) -> GroupOrder:
    """Returns the order of that name."""
    return NearestChain() if name == "nearest_chain" else ByArrival()
