"""Whether warm-ups pay, measured on the queries themselves. Pure.

Some queries with drafts are not warmed, on purpose. The wait of a query is the time from the end of
its search to its first token. Warm-ups pay while the median wait of the last queries that might be
warmed is lower than that of the others. While they do not pay, only a few queries are warmed, to
notice a change.
"""

from __future__ import annotations

from collections import deque
from statistics import median

KEPT = 200
"""The last so many waits are compared, warmed and not warmed together."""
OTHER_EVERY = 8
"""One query in so many gets the opposite choice, for comparison."""
COMPARED_MIN = 10
"""With fewer waits of a kind it is unknown whether warm-ups pay; every second query is warmed."""
GAIN_MIN = 0.02
"""The least share by which the median wait must be lower."""


class MeasuredGain:
    """Chooses for each query with drafts whether it may be warmed. A choice costs O(`KEPT`)."""

    def __init__(self) -> None:
        self._waits: deque[tuple[bool, int]] = deque(maxlen=KEPT)
        self._chosen = 0

    @property
    def pays(self) -> bool | None:
        """Whether warm-ups pay; None while that is not known."""
        warmed, others = self._of(True), self._of(False)
        if min(len(warmed), len(others)) < COMPARED_MIN:
            return None
        return median(warmed) <= (1 - GAIN_MIN) * median(others)

    def choose(self) -> bool:
        """Returns whether the next query with drafts may be warmed."""
        self._chosen += 1
        pays = self.pays
        if pays is None:
            return self._chosen % 2 == 1
        return pays != (self._chosen % OTHER_EVERY == 0)

    def measured(self, might_be_warmed: bool, wait_us: int) -> None:
        """Takes the wait of a query, and what was chosen for it."""
        self._waits.append((might_be_warmed, wait_us))

    def _of(self, might_be_warmed: bool) -> list[int]:
        return [wait_us for kind, wait_us in self._waits if kind == might_be_warmed]
