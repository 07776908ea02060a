"""`likely`: warms the passages that are final often enough, as earlier searches showed. Pure.

How often passages stay depends on the index, the order of its clusters, and how much of a search is
done. So the policy counts how many earlier drafts in the same state began with as many final
passages. Another index or order needs no other setting. While little is counted, it warms the
passages that stayed the first ones for an eighth of the clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

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

SHARE_MIN = 0.75
"""The least share of earlier drafts in the same state whose passages were final. Higher ones waste
less and hide less."""
PRIOR_SEARCHES = 2
"""Passages that stayed for `clusters_to_stay` count as so many earlier searches in the same state
whose passages were final. With more of them the first searches waste more."""
STAY_SHARE = 8
STAY_CLUSTERS_MIN = 2
COUNTED_MAX = 4_000
"""After so many searches in a state its counts are halved, so that new searches weigh more."""
DONE_CLASSES = 16
AGES = 5

State = tuple[int, int, int]
"""Number of first passages, share of the clusters that is done, and age of these passages."""


@dataclass(slots=True)
class _SearchStates:
    draft: Passages = ()
    since: list[int] = field(default_factory=list)  # clusters done when the first n were found
    states: dict[State, Passages] = field(default_factory=dict)


class Likely:
    """Implements `SpeculationPolicy`. A draft costs O(passages), the end of a search O(states)."""

    def __init__(self) -> None:
        self._searches: dict[str, _SearchStates] = {}
        self._seen: Counter[State] = Counter()
        self._right: Counter[State] = Counter()
        self._warm_ups = WarmUps()

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Wishes for the passages that are likely to be final; counts at the end of a search."""
        match event:
            case DraftFound():
                return self._warm_ups.follow(event, self._likely(event), load)
            case WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case SearchEnded():
                self._count(self._searches.pop(event.query, None), event.passages)
            case QueryAnswered():
                self._searches.pop(event.query, None)
        self._warm_ups.forget(event.query)
        return ()

    def _likely(self, event: DraftFound) -> int:
        """Returns how many passages to warm, and remembers the state of each number of them."""
        search = self._searches.setdefault(event.query, _SearchStates())
        same = common(search.draft, event.passages)
        found = len(event.passages) - same
        search.since = search.since[:same] + [event.clusters_done] * found
        search.draft = event.passages
        likely = 0
        for count, since in enumerate(search.since, 1):
            age = event.clusters_done - since
            state = (
                count,
                DONE_CLASSES * event.clusters_done // max(1, event.clusters_total),
                _age_class(age),
            )
            search.states[state] = event.passages[:count]
            prior = PRIOR_SEARCHES * (age >= clusters_to_stay(event.clusters_total))
            # P(final | state) = (right + prior) / (seen + PRIOR_SEARCHES)
            seen, right = self._seen[state] + PRIOR_SEARCHES, self._right[state] + prior
            if likely == count - 1:
                likely += right >= SHARE_MIN * seen
        return likely

    def _count(self, search: _SearchStates | None, final: Passages) -> None:
        if search is None:
            return
        for state, passages in search.states.items():
            self._seen[state] += 1
            self._right[state] += passages == final[: len(passages)]
            if self._seen[state] >= COUNTED_MAX:
                self._seen[state] //= 2
                self._right[state] //= 2


def _age_class(clusters: int) -> int:
    """Returns 0, 1, 2, 3 for 0, 1, 2 to 3, 4 to 7 clusters, and so on, at most `AGES`."""
    return min(AGES, clusters.bit_length())


def clusters_to_stay(clusters_total: int) -> int:
    """Returns for how many clusters of a query a passage must keep its rank."""
    return max(STAY_CLUSTERS_MIN, -(-clusters_total // STAY_SHARE))


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Returns how many items both begin with."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
