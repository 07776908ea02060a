"""`stable`: warms the passages that stayed the first ones while some clusters were searched. Pure.

A passage that is not replaced by the next clusters is seldom replaced later, if the nearest
clusters are searched first. With another order of the clusters this policy warms late, and warms
too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.speculation.protocol import (
    DraftFound,
    EngineLoad,
    QueryAnswered,
    SearchEnded,
    SpeculationAction,
    SpeculationEvent,
    WarmUpEnded,
)
from generator.plan.speculation.warm_ups import Passages, WarmUps

SHARE = 8
CLUSTERS_MIN = 2
"""A passage must keep its rank for an eighth of the clusters, and for two at least. With fewer,
more of the computed tokens is not used; with more, passages are warm later."""


class Stable:
    """Implements `SpeculationPolicy`. A draft costs O(drafts of its query)."""

    def __init__(self, clusters: int | None = None) -> None:
        """`clusters` for which a passage must keep its rank; None: an eighth of the query's."""
        self._clusters = clusters
        self._drafts: dict[str, list[tuple[int, Passages]]] = {}  # clusters done, passages
        self._warm_ups = WarmUps()

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Wishes for the passages that the drafts of the last clusters begin with."""
        match event:
            case DraftFound():
                drafts = self._drafts.setdefault(event.query, [])
                drafts.append((event.clusters_done, event.passages))
                clusters = self._clusters
                if clusters is None:
                    clusters = clusters_to_stay(event.clusters_total)
                return self._warm_ups.follow(event, _stable(drafts, clusters), load)
            case WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case SearchEnded() | QueryAnswered():
                self._warm_ups.forget(event.query)
                self._drafts.pop(event.query, None)
                return ()


def _stable(drafts: list[tuple[int, Passages]], clusters: int) -> int:
    done, last = drafts[-1]
    earlier = [place for place, (at, _) in enumerate(drafts) if at <= done - clusters]
    if not earlier:
        return 0
    return min(common(passages, last) for _, passages in drafts[earlier[-1] :])


def clusters_to_stay(clusters_total: int) -> int:
    """Returns for how many clusters of a query a passage must keep its rank."""
    return max(CLUSTERS_MIN, -(-clusters_total // SHARE))


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Returns how many items both begin with."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
