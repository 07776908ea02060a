"""Order of arrival, as in Algorithm 1 of CaGR-RAG. The default of Carpool."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np
from numpy.typing import NDArray


class ByArrival:
    """The group whose first query arrived first goes next; clusters are not considered.

    O(n log n). Similarities are not used.
    """

    name: Literal["arrival"] = "arrival"

    def order(
        self,
        groups: tuple[tuple[int, ...], ...],
        similarity: NDArray[np.float64],
        before: NDArray[np.float64],
        deadlines: Sequence[int],
    ) -> tuple[tuple[int, ...], ...]:
        """See `grouper.plan.order.GroupOrder`."""
        pending = list(groups)
        heapify(pending)
        later = iter(deadlines)
        limit = next(
            later, None
        )  # the first remaining query with a deadline: no later query may leave
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
