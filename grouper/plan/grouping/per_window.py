"""The whole window is one group. The default of Carpool."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray


class PerWindow:
    """One group a window.

    The cluster-major searcher reads each cluster once for all queries in progress. Smaller groups
    save no reads there, and each record costs time. Not for reproducing CaGR-RAG, whose prefetch
    begins at the end of a group. O(n).
    """

    name: Literal["per_window"] = "per_window"

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        """Returns one group of all rows of `similarity`, (n, n) float64; none for n = 0."""
        return (tuple(range(len(similarity))),) if len(similarity) else ()
