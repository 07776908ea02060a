"""Which query opens the next group: what is in hand is known, what the grouper wrote is advice."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.record import ClusterId


def next_query(
    in_hand: Sequence[ClusterId] | None, advice: Sequence[ClusterId]
) -> tuple[ClusterId, ...]:
    """Returns the clusters of the first query of the next group (CaGR-RAG, Eq. 4).

    `in_hand`: those of the first query of the group that waits here, None where none does; then
    `advice`, the `next` of the current group, is all that is known. A searcher with several lanes
    gets its groups interleaved, so what is in hand wins.
    """
    return tuple(advice if in_hand is None else in_hand)
