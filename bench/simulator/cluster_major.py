"""Cluster-major search on virtual time: does what `ClusterMajorPlanner` says, in the order of
events of its executor.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.simulator.arrivals import Arrivals
from bench.simulator.costs import ComputeCosts, Task
from bench.simulator.memory import OnEnd, SimulatedMemory
from bench.simulator.outcome import Outcome
from bench.simulator.trace import Trace
from schemas.record import ClusterId
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Action,
    Cancel,
    Event,
    Evict,
    Finish,
    Joined,
    Promote,
    Read,
    ReadEnded,
    ReadFailed,
    Substage,
    SubstageEnded,
    Wanted,
)
from searcher.plan.substage import SubstageBudget


class ClusterMajorSimulation:
    """One run: a search thread that plans and scores, and a disk beside it. For one call of
    `run`.
    """

    def __init__(
        self,
        *,
        trace: Trace,
        planner: ClusterMajorPlanner,
        arrivals: Arrivals,
        memory: Callable[[OnEnd], SimulatedMemory],
        costs: ComputeCosts,
    ) -> None:
        """`trace` says how large clusters (or slices of them) are; `arrivals` what is asked of
        them, and when.

        `memory` is made for this run.
        """
        self._trace = trace
        self._planner = planner
        self._arrivals = arrivals
        self._memory = memory(
            lambda cluster, is_cancelled: self._mail.append((cluster, is_cancelled))
        )
        self._costs = costs
        self._budget = SubstageBudget()
        self._now_us = 0.0
        self._arrived_us: dict[int, float] = {}
        self._joined_us: dict[int, float] = {}
        self._latency_us: dict[int, float] = {}
        self._mail: list[tuple[ClusterId, bool]] = []
        self._reads: list[ClusterId] = []
        self._ahead = self._hits = self._misses = 0

    def run(self) -> Outcome:
        """Searches everything that arrives."""
        while self._step():
            pass
        assert not self._arrived_us, f"{len(self._arrived_us)} queries were never answered"
        self._planner.check_integrity()
        return Outcome(
            bytes_read=self._memory.bytes_read,
            reads=tuple(self._reads),
            ahead=self._ahead,
            hits=self._hits,
            misses=self._misses,
            latency_us=tuple(self._latency_us[number] for number in sorted(self._latency_us)),
            read_us=tuple(self._memory.read_us),
            duration_us=self._now_us,
            disk_busy_us=self._memory.disk_busy_us,
        )

    def _step(self) -> bool:
        """A turn of the executor's loop; whether there may be another."""
        budget_us = self._budget.budget_us_for(len(self._planner))
        substage = self._planner.next_substage(budget_us, self._cost_us, int(self._now_us))
        if substage is not None:
            self._score(substage)
            self._take_mail()
            return True
        if self._take_mail():
            return True
        moments = (self._memory.next_us(), self._arrivals.next_us(), self._planner.wake_us())
        coming = [moment for moment in moments if moment is not None]
        if not coming or (not self._arrived_us and self._arrivals.next_us() is None):
            return False
        self._now_us = max(self._now_us, min(coming))
        self._memory.advance(self._now_us, is_asleep=True)
        if self._mail:
            self._now_us += self._costs.wake_us
            self._take_mail()
        return True

    def _take_mail(self) -> bool:
        """Tells the planner what has happened up to now, reads before arrivals; whether anything
        had.
        """
        self._memory.advance(self._now_us)
        ended, self._mail = self._mail, []
        for cluster, is_cancelled in ended:
            self._tell(
                ReadFailed(cluster=cluster, is_cancelled=True)
                if is_cancelled
                else ReadEnded(cluster=cluster)
            )
        has_mail = bool(ended)
        while (arrived := self._arrivals.take(self._now_us, len(self._planner))) is not None:
            has_mail = True
            for number, arrived_us, clusters in arrived.queries:
                self._arrived_us[number], self._joined_us[number] = arrived_us, self._now_us
                hits = sum(self._planner.is_resident(cluster) for cluster in clusters)
                self._hits += hits
                self._misses += len(clusters) - hits
            self._now_us += self._costs.join_us
            wanted = tuple(
                Wanted(query=number, clusters=clusters) for number, _, clusters in arrived.queries
            )
            self._tell(Joined(queries=wanted, horizon=arrived.horizon))
        return has_mail

    def _score(self, substage: Substage) -> None:
        tasks = tuple(
            Task(
                self._trace.row_count[task.cluster],
                self._memory.pieces(task.cluster),
                len(task.queries),
            )
            for task in substage.tasks
        )
        took_us = self._costs.scoring_us(tasks)
        self._budget.scored(tuple((task.rows, task.queries) for task in tasks), round(took_us))
        self._now_us += took_us + self._costs.turn_us
        self._budget.scheduled(round(self._costs.turn_us))
        self._tell(SubstageEnded())

    def _cost_us(self, cluster: ClusterId, queries: int) -> int:
        return self._budget.cost_us(self._trace.row_count[cluster], queries)

    # ---- doing what the planner says

    def _tell(self, event: Event) -> None:
        self._memory.advance(self._now_us)
        for action in self._planner.step(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                self._reads.append(action.cluster)
                self._ahead += action.query is None
                self._now_us += self._costs.read_us
                self._memory.advance(self._now_us)
                self._memory.begin_read(action.cluster, is_prefetch=action.query is None)
            case Evict():
                self._memory.evict(action.cluster)
            case Promote():
                self._memory.promote(action.cluster)
            case Cancel():
                self._memory.cancel(action.cluster)
            case Finish():
                self._latency_us[action.query] = self._now_us - self._arrived_us.pop(action.query)
                self._budget.retrieved(round(self._now_us - self._joined_us.pop(action.query)))
            case _:
                pass  # no read fails
