"""No grouping: every query is a group, in arrival order. The baseline of every figure."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray


class PerQuery:
    """One group for each query. O(n). Queries share only cached clusters."""

    name: Literal["per_query"] = "per_query"

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        """Returns one group for each row of `similarity`, (n, n) float64."""
        return tuple((position,) for position in range(len(similarity)))
