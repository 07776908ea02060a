"""The searcher's eviction policy: its contract, its dumb version, and what it ranks by."""

from __future__ import annotations

from collections.abc import Mapping, Set

from hypothesis import given
from hypothesis import strategies as st

from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.slices import SliceId

CLUSTERS = tuple(SliceId(cluster) for cluster in range(8))
NOBODY: frozenset[SliceId] = frozenset()
A, B, C, D = CLUSTERS[:4]


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


@given(
    half_life_windows=st.sampled_from([0, 1]),
    operations=st.lists(
        st.tuples(
            st.sampled_from(["touch", "touch", "touch", "insert", "remove", "set_horizon"]),
            st.sampled_from(CLUSTERS),
            st.dictionaries(st.sampled_from(CLUSTERS), st.integers(1, 4), max_size=5),
        ),
        max_size=80,
    ),
    protected=st.frozensets(st.sampled_from(CLUSTERS)),
)
def test_it_evicts_what_the_dumb_version_evicts(
    half_life_windows: int,
    operations: list[tuple[str, SliceId, dict[SliceId, int]]],
    protected: frozenset[SliceId],
) -> None:
    policy, dumb = FarthestNextUse(half_life_windows), DumbFarthestNextUse(half_life_windows)
    for what, cluster, horizon in operations:
        # Most evictions are of the victim, so that what follows from one is followed through.
        leaves = dumb.victim(frozenset(horizon)) if what == "remove" else None
        for each in (policy, dumb):
            if what == "touch":
                each.touch(cluster)
            elif what == "set_horizon":
                each.set_horizon(horizon)
            elif what == "insert" and cluster not in each.residents():
                each.insert(cluster)
            elif leaves is not None:
                each.remove(leaves)
        assert policy.victim(NOBODY) == dumb.victim(NOBODY)
        assert policy.victim(protected) == dumb.victim(protected)
    policy.check_integrity()


def fill(policy: FarthestNextUse, *clusters: SliceId) -> None:
    for cluster in clusters:
        policy.touch(cluster)
        policy.insert(cluster)


def test_farthest_next_use_evicts_what_is_wanted_last_whatever_was_popular() -> None:
    """Belady 1966: replace what will not be needed for the longest time."""
    policy = FarthestNextUse()
    fill(policy, A, B, C, D)
    for _ in range(9):
        policy.touch(C)
    policy.set_horizon({A: 1, C: 3, B: 2, D: 4})
    order = []
    while (victim := policy.victim(NOBODY)) is not None:
        order.append(victim)
        policy.remove(victim)
    assert order == [D, C, B, A]


def test_farthest_next_use_still_ranks_clusters_after_thousands_of_windows() -> None:
    policy = FarthestNextUse(half_life_windows=1)
    fill(policy, A, B)
    for window in range(2000):  # weights would overflow a float after 1,024 doublings
        policy.set_horizon({})
        policy.touch(A if window % 2 else B)
    assert policy.victim(NOBODY) == B
    policy.check_integrity()
