"""Rules for which clusters are in the hot shard, to compare `HotSwaps` with."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schemas.record import ClusterId
from searcher.plan.hot_swaps import MEMORY_QUERIES, SUBSTAGES_MIN, Swaps

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class HotSetRule(Protocol):
    """What the shard asks of a rule; `HotSwaps` says what each method means."""

    def add_window(
        self, probes: Sequence[Collection[ClusterId]], horizon: Mapping[ClusterId, float] | None
    ) -> None:
        """Adds the clusters of each query of a window."""
        ...

    def substage(self) -> Swaps | None:
        """Returns how the shard is to change now."""
        ...

    def loaded(self, cluster: ClusterId) -> None:
        """A cluster is in the shard."""
        ...

    def left(self, cluster: ClusterId) -> None:
        """A cluster is not in the shard."""
        ...


class StaticHotSet:
    """The shard never changes."""

    def add_window(
        self, probes: Sequence[Collection[ClusterId]], horizon: Mapping[ClusterId, float] | None
    ) -> None:
        """Does nothing."""

    def substage(self) -> Swaps | None:
        """Returns None."""
        return None

    def loaded(self, cluster: ClusterId) -> None:
        """Does nothing."""

    def left(self, cluster: ClusterId) -> None:
        """Does nothing."""


class HedraRagHotSet:
    """HedraRAG, section 4.4: after every 50 sub-stages, the clusters with the highest frequencies.

    The paper does not say that frequencies are forgotten; with `forgets` they are decayed as those
    of `HotSwaps` are. It does not use what waits in Kafka.
    """

    def __init__(
        self,
        size_bytes: Int64,
        bytes_max: int,
        hot: Collection[int],
        counts: Float64,
        *,
        forgets: bool,
    ) -> None:
        """As `HotSwaps`; `counts`: decayed if `forgets`, else of all queries alike."""
        self._size_bytes = size_bytes
        self._bytes_max = bytes_max
        self._counts = counts.copy()
        self._held = np.zeros(len(size_bytes), bool)
        self._held[list(hot)] = True
        self._forgets = forgets
        self._parts: deque[Swaps] = deque()
        self._running = 0
        self._substages = 0

    def add_window(
        self, probes: Sequence[Collection[ClusterId]], horizon: Mapping[ClusterId, float] | None
    ) -> None:
        """Adds the clusters of each query of a window."""
        if self._forgets:
            self._counts *= np.exp(-len(probes) / MEMORY_QUERIES)
        for clusters in probes:
            self._counts[list(clusters)] += 1

    def substage(self) -> Swaps | None:
        """Returns a part of the change to the hottest clusters that fit, made every 50 sub-stages.

        A cluster enters at a time, about as with `HotSwaps`: how fast is not compared.
        """
        self._substages += 1
        if not self._running and self._substages >= SUBSTAGES_MIN:
            self._begin_change()
        return self._parts.popleft() if self._parts else None

    def _begin_change(self) -> None:
        self._substages = 0
        hot = hottest(self._counts, self._size_bytes, self._bytes_max)
        wanted = np.zeros(len(self._held), bool)
        wanted[hot] = True
        leave = np.flatnonzero(self._held & ~wanted)
        enter = hot[~self._held[hot]]
        free_bytes = self._bytes_max - int(self._size_bytes[self._held].sum())
        self._held = wanted
        self._running = len(enter) + len(leave)
        leaving = deque(leave[np.argsort(self._counts[leave], kind="stable")].tolist())
        for cluster in enter.tolist():
            left: list[ClusterId] = []
            free_bytes -= int(self._size_bytes[cluster])
            while free_bytes < 0:
                left.append(ClusterId(leaving.popleft()))
                free_bytes += int(self._size_bytes[left[-1]])
            self._parts.append(Swaps(tuple(left), (ClusterId(cluster),)))
        if leaving:
            self._parts.append(Swaps(tuple(map(ClusterId, leaving)), ()))

    def loaded(self, cluster: ClusterId) -> None:
        """A cluster is in the shard."""
        self._running -= 1

    def left(self, cluster: ClusterId) -> None:
        """A cluster is not in the shard."""
        self._running -= 1


def hottest(counts: Float64, size_bytes: Int64, bytes_max: int) -> Int64:
    """Returns the clusters with the highest counts that fit, hottest first."""
    order = np.argsort(-counts, kind="stable")
    return order[(np.cumsum(size_bytes[order]) <= bytes_max) & (counts[order] > 0)]
