"""LRU: evict the least recently used cluster.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
5(2), 1966, compares it with the optimum. Do not use it where a window needs as many bytes as the
budget (it keeps the last clusters, not those that are needed again), nor where the costs of
clusters differ much. Cost: `touch`, `insert`, `remove` O(1); `victim` O(protected clusters that are
older), 25 ns each.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import filterfalse

from searcher.plan.slices import SliceId


class Lru:
    """Least recently used. An insertion counts as a use, also that of a prefetch."""

    def __init__(self) -> None:
        self._by_age: dict[SliceId, None] = {}

    def touch(self, cluster: SliceId) -> None:
        """Makes a resident cluster the newest; ignores any other cluster."""
        if cluster in self._by_age:
            del self._by_age[cluster]
            self._by_age[cluster] = None

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Does nothing: this policy does not use the horizon."""

    def insert(self, cluster: SliceId) -> None:
        """Adds a cluster as the newest."""
        assert cluster not in self._by_age, f"cluster {cluster} is resident already"
        self._by_age[cluster] = None

    def remove(self, cluster: SliceId) -> None:
        """Removes a cluster."""
        del self._by_age[cluster]

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the oldest cluster that is not protected."""
        return next(filterfalse(protected.__contains__, self._by_age), None)

    def residents(self) -> frozenset[SliceId]:
        """Returns the resident clusters."""
        return frozenset(self._by_age)

    def check_integrity(self) -> None:
        """Does nothing: there is only one collection."""
