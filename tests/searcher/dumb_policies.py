"""The eviction policy as slowly and plainly as it can be written: it searches its whole history for
each victim. And what may happen to a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from hypothesis import strategies as st

from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.slices import SliceId


class DumbFarthestNextUse(FarthestNextUse):
    """Works out each rank from the whole history. Exact where fading halves a use or never."""

    def __init__(self, half_life_windows: int) -> None:
        super().__init__()
        self._half_life_windows = half_life_windows
        self._requests: list[tuple[int, SliceId]] = []  # with the window
        self._resident: list[SliceId] = []
        self._windows = 0
        self._horizon: dict[SliceId, int] = {}

    def touch(self, cluster: SliceId) -> None:
        self._requests.append((self._windows, cluster))

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        self._windows += 1
        self._horizon = dict(horizon)

    def insert(self, cluster: SliceId) -> None:
        self._resident.append(cluster)

    def remove(self, cluster: SliceId) -> None:
        self._resident.remove(cluster)

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        candidates = [one for one in self._resident if one not in protected]
        return min(candidates, key=lambda one: (*self._rank(one), one), default=None)

    def residents(self) -> frozenset[SliceId]:
        return frozenset(self._resident)

    def _rank(self, cluster: SliceId) -> tuple[float, float]:
        fading = 1 / self._half_life_windows if self._half_life_windows else 0
        ages = [self._windows - at for at, seen in self._requests if seen == cluster]
        uses = sum(0.5 ** (age * fading) for age in ages)
        return -self._horizon.get(cluster, float("inf")), uses


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
