"""The whole window is one group. The default of Carpool."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray


class PerWindow:
    """One group a window; only its order says who is like whom.

    A searcher that goes cluster by cluster reads each cluster once for everybody who is in its
    hand, alike or not: there a boundary between groups can only tear apart what could share a read,
    and every record more costs time. Not for reproducing CaGR-RAG, whose prefetch begins at the end
    of a group. O(n).
    """

    name: Literal["per_window"] = "per_window"

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        """Returns one group of all rows of `similarity`, (n, n) float64; none for n = 0."""
        return (tuple(range(len(similarity))),) if len(similarity) else ()
