"""The same windows of exact searches on the searcher's own plane, and on its planner alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bench.core.plane_counts import bytes_read
from bench.search.contestants.contestant import WINDOWS_AHEAD
from carpool.clock import SystemClock
from carpool.disk.index import OpenIndex
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.open_exact import ExactOptions, ExactPlane, open_exact_plane
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Event,
    FinishQuery,
    Joined,
    Read,
    ReadEnded,
    SubstageEnded,
    Wanted,
)
from searcher.plan.cut import Slices
from searcher.plan.slices import SliceId
from searcher.settings import SearcherSettings

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

TOP_K = 10
WAIT_S = 60.0
OVERTAKE_US = 60_000_000
"""Not the searcher's limit: overtaking a slow read changes what is read, so none is overtaken."""
TASK_US, SUBSTAGE_US = 100, 1_000
"""What a task of the planner costs, and what a sub-stage may: bytes do not depend on either."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Questions in windows, each asked when the last one is answered.

    `vectors`: (n, dim) float32; `probes`: (n, nprobe) int32; `size`: questions a window.
    """

    vectors: Float32
    probes: Int32
    size: int

    @property
    def count(self) -> int:
        """The number of windows; the last one may be shorter."""
        return -(-len(self.probes) // self.size)

    def members(self, window: int) -> range:
        """Returns the questions of a window; none beyond the last one."""
        start = window * self.size
        return range(start, min(start + self.size, len(self.probes)))

    def horizon(self, window: int) -> dict[int, int]:
        """Returns in how many windows each cluster is wanted next; 1: in the one after this."""
        found: dict[int, int] = {}
        for ahead in range(WINDOWS_AHEAD, 0, -1):
            probes = self.probes[self.members(window + ahead)]
            found |= dict.fromkeys(np.unique(probes).tolist(), ahead)
        return found


@dataclass(frozen=True, kw_only=True)
class SearchedPlane:
    """What is searched, and with which settings."""

    index: OpenIndex
    settings: SearcherSettings
    options: ExactOptions

    def real_bytes(self, windows: Windows) -> int:
        """Searches from an empty cache; returns the bytes that were read. Blocks.

        Raises what opening the plane raises, and `RetryableError` for a query without all of its
        clusters.
        """
        metrics = Metrics()
        thread = SearchThread(self._open(metrics))
        try:
            for window in range(windows.count):
                thread.join(_group(windows, window))
                for _ in windows.members(window):
                    search, found = thread.take(WAIT_S)
                    if found is None or found.skipped:
                        why = "; ".join(map(str, found.errors)) if found else "it was dropped"
                        raise RetryableError(
                            f"query {search.key} was not searched whole, so nothing can be "
                            f"compared: {why}"
                        )
        finally:
            thread.close()
        return bytes_read(metrics)

    def simulated_bytes(self, windows: Windows) -> int:
        """Returns the bytes that the planner reads for the same windows."""
        plane = self._open(Metrics())
        plane.close()
        slices = Slices(self.index.extents, self.index.layout, self.options.slice_bytes_max)
        sizes = [extent.size_bytes for extent in slices.extents]
        simulation = PlanSimulation(plane.planner, sizes)
        for window in range(windows.count):
            queries = {
                query: slices.of_all(tuple(map(ClusterId, windows.probes[query].tolist())))
                for query in windows.members(window)
            }
            horizon: dict[SliceId, int] = {}
            for cluster, ahead in windows.horizon(window).items():
                horizon |= dict.fromkeys(slices.of_all((ClusterId(cluster),)), ahead)
            simulation.search(queries, horizon)
        plane.planner.check_integrity()
        return simulation.bytes_read

    def _open(self, metrics: Metrics) -> ExactPlane:
        options = replace(self.options, overtake_us=OVERTAKE_US)
        return open_exact_plane(self.index, self.settings, metrics, SystemClock(), options=options)


class PlanSimulation:
    """Does what the planner says: reads end in the order in which they began, at once."""

    def __init__(self, planner: ClusterMajorPlanner, size_bytes: Sequence[int]) -> None:
        """`size_bytes`: of each slice."""
        self._planner = planner
        self._size_bytes = size_bytes
        self._reading: deque[SliceId] = deque()
        self._waiting = 0
        self.bytes_read = 0

    def search(
        self, queries: Mapping[int, tuple[SliceId, ...]], horizon: Mapping[SliceId, int]
    ) -> None:
        """Searches a window to its end."""
        wanted = tuple(Wanted(query=query, slices=slices) for query, slices in queries.items())
        self._waiting = len(wanted)
        self._tell(Joined(queries=wanted, horizon=horizon))
        while self._waiting:
            if self._planner.next_substage(SUBSTAGE_US, lambda _slice, _queries: TASK_US, 0):
                self._tell(SubstageEnded())
            else:
                assert self._reading, "queries wait for slices that are not read"
                self._tell(ReadEnded(slice_id=self._reading.popleft()))

    def _tell(self, event: Event) -> None:
        for action in self._planner.step(event):
            if isinstance(action, Read):
                self._reading.append(action.slice_id)
                self.bytes_read += self._size_bytes[action.slice_id]
            elif isinstance(action, FinishQuery):
                self._waiting -= 1


def _group(windows: Windows, window: int) -> SearchGroup:
    searches = tuple(
        Search(
            key=query,
            vector=windows.vectors[query],
            clusters=tuple(map(ClusterId, windows.probes[query].tolist())),
            top_k=TOP_K,
        )
        for query in windows.members(window)
    )
    horizon = {ClusterId(cluster): ahead for cluster, ahead in windows.horizon(window).items()}
    return SearchGroup(searches=searches, window=window, horizon=horizon)
