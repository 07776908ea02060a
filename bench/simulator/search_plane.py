"""The plan of exact searches without a disk: the bytes that it reads are those of a real run.

*Invariant:* no decision is made here: `searcher.plan` decides what is read, evicted and scored, and
when a query is answered. Absent on purpose: time, vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Event,
    FinishQuery,
    Joined,
    Promote,
    Read,
    ReadEnded,
    SubstageEnded,
    Wanted,
)
from searcher.plan.slices import SliceId

TASK_US, SUBSTAGE_US = 100, 1_000
"""What a task of the planner costs, and what a sub-stage may: bytes do not depend on either."""


class PlanSimulation:
    """Does what the planner says: reads end in the order in which they began, at once."""

    def __init__(self, planner: ClusterMajorPlanner, size_bytes: Sequence[int]) -> None:
        """`size_bytes`: of each slice."""
        self._planner = planner
        self._size_bytes = size_bytes
        self._reading: deque[SliceId] = deque()
        self._waiting = 0
        self.bytes_read = 0
        self.bytes_waited_for = 0
        """Of reads that had not ended when a query wanted them."""

    def read_ahead(self, horizon: Mapping[SliceId, int]) -> None:
        """Reads what the plan reads of a horizon while no query is searched."""
        self._tell(Joined(queries=(), horizon=horizon))
        while self._reading:
            self._tell(ReadEnded(slice_id=self._reading.popleft()))

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
                if action.query is not None:
                    self.bytes_waited_for += self._size_bytes[action.slice_id]
            elif isinstance(action, Promote):
                self.bytes_waited_for += self._size_bytes[action.slice_id]
            elif isinstance(action, FinishQuery):
                self._waiting -= 1
