"""LRU: evict the cluster whose last use lies furthest back; the baseline that needs no profile.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
5(2), 1966, compares it with what is best. Do not use it where a window touches as many bytes as the
budget holds: it then keeps what came last rather than what comes again; nor where clusters differ
much in cost, all of which it takes for equal. Cost: `touch`, `insert`, `remove` O(1); `victim`
O(protected clusters that are older), 25 ns each.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import filterfalse

from searcher.plan.slices import SliceId


class Lru:
    """Least recently used. An insertion counts as a use, so that a prefetched cluster is not the
    next to go.
    """

    def __init__(self) -> None:
        self._by_age: dict[SliceId, None] = {}

    def touch(self, cluster: SliceId) -> None:
        """Makes a resident cluster the newest; what is not resident is not remembered."""
        if cluster in self._by_age:
            del self._by_age[cluster]
            self._by_age[cluster] = None

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Knows nothing of the future."""

    def insert(self, cluster: SliceId) -> None:
        """Adds a cluster as the newest."""
        assert cluster not in self._by_age, f"cluster {cluster} is resident already"
        self._by_age[cluster] = None

    def remove(self, cluster: SliceId) -> None:
        """Forgets a cluster."""
        del self._by_age[cluster]

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the oldest cluster that is not protected."""
        return next(filterfalse(protected.__contains__, self._by_age), None)

    def residents(self) -> frozenset[SliceId]:
        """Returns what is resident."""
        return frozenset(self._by_age)

    def check_integrity(self) -> None:
        """Holds by construction: there is one book."""
