"""Search query by query on virtual time: does what `ReadPlanner` says, as `QueryByQuery` and
`ClusterCache` do together.

The end of a read is told to the planner on the engine's thread, at the moment when it is verified;
the search thread takes what it is granted in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bench.baselines.read_planner import ReadPlanner
from bench.baselines.read_steps import (
    Event,
    Evict,
    Grant,
    GroupBegan,
    GroupEnded,
    QueryBegan,
    QueryEnded,
    Read,
    ReadEnded,
    Released,
)
from bench.simulator.costs import ComputeCosts, Task
from bench.simulator.memory import OnEnd, SimulatedMemory
from bench.simulator.outcome import Outcome
from bench.simulator.trace import Clusters, Trace, Window
from bench.simulator.ways import Groups, next_queries
from schemas.record import ClusterId


class QueryByQuerySimulation:
    """One run of a closed loop: the next window arrives when the last query of the one before was
    answered.
    """

    def __init__(
        self,
        *,
        trace: Trace,
        groups: Callable[[Window], Groups],
        planner: ReadPlanner,
        memory: Callable[[OnEnd], SimulatedMemory],
        costs: ComputeCosts,
    ) -> None:
        """`groups` cuts a window, which takes no time here; `memory` is made for this run."""
        self._trace = trace
        self._groups = groups
        self._planner = planner
        self._memory = memory(self._hear)
        self._costs = costs
        self._now_us = 0.0
        self._granted: deque[ClusterId] = deque()
        self._is_searching = False  # whether the search thread plans, and holds the lock
        self._unheard: deque[ClusterId] = deque()
        self._reads: list[ClusterId] = []
        self._ahead = self._hits = self._misses = 0
        self._latency_us: list[float] = []

    def run(self) -> Outcome:
        """Searches everything."""
        for window in self._trace.windows:
            arrived_us = self._now_us
            self._now_us += self._costs.join_us
            answered_us: dict[int, float] = {}
            groups = self._groups(window)
            for number, (members, following) in enumerate(
                zip(groups, next_queries(window, groups), strict=True)
            ):
                self._search_group(
                    window, members, following, is_first=number == 0, answered_us=answered_us
                )
            self._latency_us += [
                answered_us[position] - arrived_us for position in range(len(window))
            ]
            self._now_us += self._costs.arrival_us
        self._planner.check_integrity()
        return Outcome(
            bytes_read=self._memory.bytes_read,
            reads=tuple(self._reads),
            ahead=self._ahead,
            hits=self._hits,
            misses=self._misses,
            latency_us=tuple(self._latency_us),
            read_us=tuple(self._memory.read_us),
            duration_us=self._now_us,
            disk_busy_us=self._memory.disk_busy_us,
        )

    def _search_group(
        self,
        window: Window,
        members: tuple[int, ...],
        following: Clusters,
        *,
        is_first: bool,
        answered_us: dict[int, float],
    ) -> None:
        queries = tuple(window[member] for member in members)
        self._tell(
            GroupBegan(queries=queries, next_query=following, horizon={} if is_first else None)
        )
        for position, member in enumerate(members):
            self._search(position, window[member])
            answered_us[member] = self._now_us
        self._tell(GroupEnded())

    def _search(self, position: int, clusters: Clusters) -> None:
        self._granted.clear()
        self._tell(QueryBegan(position=position))
        self._hits += len(self._granted)
        self._misses += len(clusters) - len(self._granted)
        for cluster in clusters:
            self._memory.promote(cluster)
        for _ in clusters:
            self._memory.advance(self._now_us)
            if not self._granted:
                self._wait()
            cluster = self._granted.popleft()
            task = Task(self._trace.row_count[cluster], self._memory.pieces(cluster), 1)
            self._now_us += self._costs.scoring_us((task,)) + self._costs.turn_us
            self._tell(Released(cluster=cluster))
        self._tell(QueryEnded())

    def _wait(self) -> None:
        while not self._granted:
            moment_us = self._memory.next_us()
            assert moment_us is not None, "the query waits for a cluster that nobody reads"
            self._now_us = max(self._now_us, moment_us)
            self._memory.advance(self._now_us, is_asleep=True)
        self._now_us += self._costs.wake_us

    # ---- doing what the planner says

    def _tell(self, event: Event) -> None:
        """On the search thread, which holds the lock meanwhile: what the engine's thread has to
        tell waits.
        """
        self._memory.advance(self._now_us)
        self._is_searching = True
        self._step(event)
        self._is_searching = False
        while self._unheard:
            self._step(ReadEnded(cluster=self._unheard.popleft()))

    def _hear(self, cluster: ClusterId, is_cancelled: bool) -> None:
        """On the engine's thread."""
        assert not is_cancelled, "nothing here cancels a read"
        if self._is_searching:
            self._unheard.append(cluster)
        else:
            self._step(ReadEnded(cluster=cluster))

    def _step(self, event: Event) -> None:
        for action in self._planner.step(event):
            match action:
                case Read():
                    self._read(action)
                case Evict():
                    self._memory.evict(action.cluster)
                case Grant():
                    self._granted.append(action.cluster)
                case _:
                    # no read fails, so nothing is denied; what became of a prefetch costs nothing
                    pass

    def _read(self, action: Read) -> None:
        self._reads.append(action.cluster)
        self._ahead += action.purpose == "prefetch"
        if self._is_searching:
            self._now_us += self._costs.read_us
            self._memory.advance(self._now_us)
        self._memory.begin_read(action.cluster, is_prefetch=action.purpose == "prefetch")
