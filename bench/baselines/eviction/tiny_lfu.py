"""W-TinyLFU: a segmented LRU that admits a new cluster only if it is used more than the victim.

Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions
on Storage 13(4), 2017, section 4. Most clusters that a window reads are needed by that window only;
admission by frequency evicts them first. Deviations: exact counters replace the sketch, since there
are only nlist of them, and a duel ignores sizes. Use it without a horizon, where popular clusters
change. With a horizon `farthest_next_use` reads a fifth to a quarter less; where popular clusters
last, `lfu` is as good. Cost: `touch`, `insert`, `remove` O(1), and O(clusters seen) once a sample;
`victim` 25 ns for each protected cluster that it passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import chain, filterfalse

from searcher.plan.slices import SliceId

_WINDOW_SHARE = 0.01  # of the budget: section 4.1
_MAIN_SHARE = 0.8  # of what is not the window: section 4.1
_SAMPLE_PER_CLUSTER = 10  # requests between two halvings, for each cluster: section 3.3


class _Segment:
    """Clusters from the least to the most recently used, and their bytes."""

    def __init__(self, size_bytes: Mapping[SliceId, int]) -> None:
        self._sizes = size_bytes
        self.clusters: dict[SliceId, None] = {}
        self.bytes = 0

    def push(self, cluster: SliceId) -> None:
        self.clusters[cluster] = None
        self.bytes += self._sizes[cluster]

    def drop(self, cluster: SliceId) -> None:
        del self.clusters[cluster]
        self.bytes -= self._sizes[cluster]

    def pop(self) -> SliceId:
        cluster = next(iter(self.clusters))
        self.drop(cluster)
        return cluster


class TinyLfu:
    """Segments: window, candidates, probation, main. Uses outlive eviction; aging halves them."""

    def __init__(self, size_bytes: Mapping[SliceId, int], budget_bytes: int) -> None:
        """`size_bytes` has every cluster that may become resident."""
        self._window_bytes_max = int(_WINDOW_SHARE * budget_bytes)
        self._main_bytes_max = int(_MAIN_SHARE * (budget_bytes - self._window_bytes_max))
        self._window = _Segment(size_bytes)
        self._candidates = _Segment(size_bytes)  # have left the window, and won no duel so far
        self._probation = _Segment(size_bytes)
        self._main = _Segment(size_bytes)  # used again since they left the window
        self._uses: dict[SliceId, int] = {}
        self._sampled = 0
        self._sample = max(1, _SAMPLE_PER_CLUSTER * len(size_bytes))

    def touch(self, cluster: SliceId) -> None:
        """Counts a use. A resident cluster outside the window moves to main."""
        self._count(cluster)
        segment = self._segment(cluster)
        if segment is None:
            return
        segment.drop(cluster)
        if segment is self._window:
            self._window.push(cluster)
            return
        self._main.push(cluster)
        while self._main.bytes > self._main_bytes_max:
            self._probation.push(self._main.pop())

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Does nothing: this policy does not use the horizon."""

    def insert(self, cluster: SliceId) -> None:
        """Adds a cluster to the window; the oldest of a full window become candidates."""
        assert self._segment(cluster) is None, f"cluster {cluster} is resident already"
        self._window.push(cluster)
        while self._window.bytes > self._window_bytes_max:
            self._candidates.push(self._window.pop())

    def remove(self, cluster: SliceId) -> None:
        """Removes a cluster. If it is not the oldest candidate, that one has won its duel."""
        segment = self._segment(cluster)
        if segment is None:
            raise KeyError(cluster)
        oldest = next(iter(self._candidates.clusters), cluster)
        segment.drop(cluster)
        if oldest != cluster:
            self._candidates.drop(oldest)
            self._probation.push(oldest)

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the loser of a duel: oldest candidate against oldest of probation, else of main.

        If one of the two is missing, the duel is between two candidates. A single cluster is the
        victim; without any, the oldest of the window is.
        """
        window, candidates, probation, main = (
            filterfalse(protected.__contains__, segment.clusters) for segment in self._segments()
        )
        candidate, incumbent = next(candidates, None), next(chain(probation, main), None)
        if incumbent is None:
            candidate, incumbent = next(candidates, None), candidate
        if incumbent is None:
            return next(window, None)
        if candidate is None:
            return incumbent
        return (
            candidate if self._uses.get(candidate, 0) <= self._uses.get(incumbent, 0) else incumbent
        )

    def residents(self) -> frozenset[SliceId]:
        """Returns the resident clusters."""
        return frozenset().union(*(segment.clusters for segment in self._segments()))

    def check_integrity(self) -> None:
        """Raises `AssertionError` where a cluster is in two segments or a segment too large."""
        assert len(self.residents()) == sum(len(segment.clusters) for segment in self._segments())
        assert (
            self._window.bytes <= self._window_bytes_max
            and self._main.bytes <= self._main_bytes_max
        )
        for segment in self._segments():
            assert segment.bytes == sum(segment._sizes[cluster] for cluster in segment.clusters)

    def _segments(self) -> tuple[_Segment, ...]:
        return (self._window, self._candidates, self._probation, self._main)

    def _segment(self, cluster: SliceId) -> _Segment | None:
        return next((segment for segment in self._segments() if cluster in segment.clusters), None)

    def _count(self, cluster: SliceId) -> None:
        self._uses[cluster] = self._uses.get(cluster, 0) + 1
        self._sampled += 1
        if self._sampled >= self._sample:
            self._sampled //= 2
            self._uses = {seen: uses // 2 for seen, uses in self._uses.items() if uses > 1}
