"""LRU: evict the cluster whose last use lies furthest back; the baseline that needs no profile.

Use `edgerag` where clusters differ much in read latency, since LRU takes them all for equally dear.
Cost: `touch`, `insert`, `remove` O(1); `victim` O(protected clusters that are older).
"""

from __future__ import annotations

from collections.abc import Set

from schemas.record import ClusterId


class Lru:
    """Least recently used. An insertion counts as a use, so that a prefetched cluster is not the next to go."""

    def __init__(self) -> None:
        self._by_age: dict[ClusterId, None] = {}

    def touch(self, cluster: ClusterId) -> None:
        """Makes a resident cluster the newest; what is not resident is not remembered."""
        if cluster in self._by_age:
            del self._by_age[cluster]
            self._by_age[cluster] = None

    def insert(self, cluster: ClusterId) -> None:
        """Adds a cluster as the newest."""
        assert cluster not in self._by_age, f"cluster {cluster} is resident already"
        self._by_age[cluster] = None

    def remove(self, cluster: ClusterId) -> None:
        """Forgets a cluster."""
        del self._by_age[cluster]

    def victim(self, protected: Set[ClusterId]) -> ClusterId | None:
        """Returns the oldest cluster that is not protected."""
        return next((cluster for cluster in self._by_age if cluster not in protected), None)

    def residents(self) -> frozenset[ClusterId]:
        """Returns what is resident."""
        return frozenset(self._by_age)
