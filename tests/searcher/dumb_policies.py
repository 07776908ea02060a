"""Eviction policies as slowly and plainly as they can be written: a history, and a search through
all of it for each victim. And what may happen to a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from hypothesis import strategies as st

from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.slices import SliceId


@dataclass
class History:
    """What happened so far, and what is resident in the order in which it became so."""

    requests: list[tuple[int, SliceId]] = field(default_factory=list)  # (window, cluster)
    resident: list[SliceId] = field(default_factory=list)
    window: int = 0
    horizon: dict[SliceId, int] = field(default_factory=dict)

    def uses(self, cluster: SliceId) -> int:
        return sum(1 for _, seen in self.requests if seen == cluster)


class Dumb(FarthestNextUse):
    """A policy that ranks by a number which it works out from the whole history."""

    def __init__(self, rank: Callable[[History, SliceId], tuple[float, ...]]) -> None:
        super().__init__()
        self.history = History()
        self._rank_in = rank

    def touch(self, cluster: SliceId) -> None:
        self.history.requests.append((self.history.window, cluster))

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        self.history.window += 1
        self.history.horizon = dict(horizon)

    def insert(self, cluster: SliceId) -> None:
        self.history.resident.append(cluster)

    def remove(self, cluster: SliceId) -> None:
        self.history.resident.remove(cluster)

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        candidates = [c for c in self.history.resident if c not in protected]
        return min(candidates, key=lambda c: (*self._rank_in(self.history, c), c), default=None)

    def residents(self) -> frozenset[SliceId]:
        return frozenset(self.history.resident)

    def check_integrity(self) -> None:
        assert len(set(self.history.resident)) == len(self.history.resident)


class DumbLru(Dumb):
    """A list, oldest first."""

    def __init__(self) -> None:
        super().__init__(lambda history, cluster: (history.resident.index(cluster),))

    def touch(self, cluster: SliceId) -> None:
        if cluster in self.history.resident:
            self.history.resident.remove(cluster)
            self.history.resident.append(cluster)


def dumb_farthest_next_use(half_life_windows: int) -> Dumb:
    """Exact where fading halves every window or never."""

    def faded(history: History, cluster: SliceId) -> float:
        halvings = [
            (history.window - at) / half_life_windows if half_life_windows else 0
            for at, _ in history.requests
        ]
        return sum(
            0.5**n
            for n, (_, seen) in zip(halvings, history.requests, strict=True)
            if seen == cluster
        )

    def rank(history: History, cluster: SliceId) -> tuple[float, ...]:
        return (-history.horizon.get(cluster, float("inf")), faded(history, cluster))

    return Dumb(rank)


CLUSTERS = tuple(SliceId(c) for c in range(8))
NOBODY: frozenset[SliceId] = frozenset()

A, B, C, D = (SliceId(c) for c in range(4))

Operation = tuple[str, SliceId, dict[SliceId, int]]  # what, to which cluster, with what horizon

# What may happen to a cache of eight clusters. Half of what happens is a request, as in life.
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["touch", "touch", "touch", "insert", "remove", "set_horizon"]),
        st.sampled_from(CLUSTERS),
        st.dictionaries(st.sampled_from(CLUSTERS), st.integers(1, 4), max_size=5),
    ),
    max_size=80,
)
PROTECTED = st.frozensets(st.sampled_from(CLUSTERS))


def do(policy: FarthestNextUse, operation: Operation) -> None:
    """Does what can be done: a resident cluster is not inserted, and what is not resident not
    removed.
    """
    what, cluster, horizon = operation
    if what == "touch":
        policy.touch(cluster)
    elif what == "set_horizon":
        policy.set_horizon(horizon)
    elif what == "insert" and cluster not in policy.residents():
        policy.insert(cluster)
    elif what == "remove" and cluster in policy.residents():
        policy.remove(cluster)


def fill(policy: FarthestNextUse, *clusters: SliceId) -> None:
    for cluster in clusters:
        policy.touch(cluster)
        policy.insert(cluster)
