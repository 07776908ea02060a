"""A closed loop on virtual time that does the actions of `ClusterMajorPlanner`."""

from __future__ import annotations

import msgspec

from bench.baselines.contestant import WINDOWS_AHEAD
from bench.data.trace import Trace, soonest
from bench.simulator.costs import ComputeCosts, SliceTask
from bench.simulator.reads import SimulatedReads
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Action,
    Event,
    Evict,
    FinishQuery,
    Joined,
    Promote,
    Read,
    ReadEnded,
    SubstageEnded,
    Task,
    Wanted,
)
from searcher.plan.slices import SliceId
from searcher.plan.substage import SubstageBudget


class SimulationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated run did.

    `reads`: slices in the order in which their reads began. `latency_us`: of each query, by its
    number.
    """

    bytes_read: int
    reads: tuple[SliceId, ...]
    latency_us: tuple[float, ...]


class ClusterMajorSimulation:
    """One run: a search thread that plans and scores, and a disk. For one call of `run`."""

    def __init__(
        self,
        *,
        trace: Trace,
        planner: ClusterMajorPlanner,
        reads: SimulatedReads,
        costs: ComputeCosts,
    ) -> None:
        """`trace`: windows of slices; each window arrives when the last one is answered."""
        self._trace = trace
        self._planner = planner
        self._reads = reads
        self._costs = costs
        self._budget = SubstageBudget()
        self._now_us = 0.0
        self._arrived_us = 0.0
        self._latency_us: list[float] = []
        self._waiting: dict[int, float] = {}  # when each query joined
        self._order: list[SliceId] = []

    def run(self) -> SimulationOutcome:
        """Searches everything."""
        first = 0
        for number, window in enumerate(self._trace.windows):
            self._arrived_us = self._now_us
            self._latency_us += [0.0] * len(window)
            self._join(number, first)
            while self._waiting:
                self._step()
            first += len(window)
            self._now_us += self._costs.arrival_us
        self._planner.check_integrity()
        return SimulationOutcome(
            bytes_read=self._reads.bytes_read,
            reads=tuple(self._order),
            latency_us=tuple(self._latency_us),
        )

    def _join(self, number: int, first: int) -> None:
        self._take_ended()
        window = self._trace.windows[number]
        for at in range(len(window)):
            self._waiting[first + at] = self._now_us
        self._now_us += self._costs.join_us
        horizon = soonest(self._trace.windows[number + 1 : number + 1 + WINDOWS_AHEAD])
        queries = tuple(Wanted(query=first + at, slices=slices) for at, slices in enumerate(window))
        self._tell(Joined(queries=queries, horizon=horizon))

    def _step(self) -> None:
        """One turn of the executor's loop."""
        budget_us = self._budget.budget_us_for(len(self._planner))
        tasks = self._planner.next_substage(budget_us, self._cost_us, int(self._now_us))
        if tasks:
            self._score(tasks)
            self._take_ended()
            return
        moments = (self._reads.next_us(), self._planner.wake_us())
        coming = [moment for moment in moments if moment is not None]
        assert coming, "queries wait for slices that are not read"
        self._now_us = max(self._now_us, min(coming))
        self._take_ended()

    def _take_ended(self) -> None:
        self._reads.advance(self._now_us)
        for cluster in self._reads.take_ended():
            self._tell(ReadEnded(slice_id=cluster))

    def _score(self, tasks: tuple[Task, ...]) -> None:
        work = tuple(
            SliceTask(self._trace.row_count[task.slice_id], len(task.queries)) for task in tasks
        )
        took_us = self._costs.scoring_us(work)
        self._budget.scored(work, round(took_us))
        self._now_us += took_us + self._costs.turn_us
        self._budget.scheduled(round(self._costs.turn_us))
        self._tell(SubstageEnded())

    def _cost_us(self, cluster: SliceId, queries: int) -> int:
        return self._budget.cost_us(self._trace.row_count[cluster], queries)

    def _tell(self, event: Event) -> None:
        self._reads.advance(self._now_us)
        for action in self._planner.step(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                is_prefetch = action.query is None
                self._order.append(action.slice_id)
                self._reads.begin(action.slice_id, is_prefetch=is_prefetch)
            case Promote():
                self._reads.promote(action.slice_id)
            case FinishQuery():
                self._latency_us[action.query] = self._now_us - self._arrived_us
                self._budget.retrieved(round(self._now_us - self._waiting.pop(action.query)))
            case Evict():
                pass  # the planner alone knows what is resident
            case _:
                raise AssertionError(f"{action}: no read fails or is cancelled here")
