"""A planner in a world whose reads and scorings end when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Action,
    Demote,
    Event,
    Evict,
    FinishQuery,
    Joined,
    Promote,
    Read,
    ReadEnded,
    SkipSlice,
    SubstageEnded,
    Wanted,
)
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.limits import ClusterMajorLimits
from searcher.plan.slices import SliceId

Window = Sequence[tuple[int, ...]]


def ids(clusters: Sequence[int]) -> tuple[SliceId, ...]:
    return tuple(SliceId(cluster) for cluster in clusters)


@dataclass
class World:
    """Does what the planner says, and checks every word of it: a memory of sets, a disk of pending
    reads.
    """

    sizes: Mapping[SliceId, int]
    limits: ClusterMajorLimits
    policy: FarthestNextUse = field(default_factory=FarthestNextUse)
    planner: ClusterMajorPlanner = field(init=False)
    resident: set[SliceId] = field(default_factory=set)
    reading: dict[SliceId, int | None] = field(default_factory=dict)
    reads: list[SliceId] = field(default_factory=list)
    evictions: list[SliceId] = field(default_factory=list)
    scored: list[tuple[SliceId, int]] = field(default_factory=list)
    finished: dict[int, tuple[SliceId, ...]] = field(default_factory=dict)
    skipped: dict[int, list[SliceId]] = field(default_factory=dict)
    wants: dict[int, tuple[SliceId, ...]] = field(default_factory=dict)
    now_us: int = 0

    def __post_init__(self) -> None:
        self.planner = ClusterMajorPlanner(self.limits, self.sizes, self.policy)

    def tell(self, event: Event) -> tuple[Action, ...]:
        actions = self.planner.step(event)
        for action in actions:
            self._do(action)
        self.planner.check_integrity()
        return actions

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                assert action.slice_id not in self.resident and action.slice_id not in self.reading
                self.reading[action.slice_id] = action.query
                self.reads.append(action.slice_id)
            case Evict():
                self.resident.remove(action.slice_id)
                self.evictions.append(action.slice_id)
            case FinishQuery():
                assert action.query not in self.finished, "finished twice"
                self.finished[action.query] = action.skipped
            case SkipSlice():
                for query in action.queries:
                    self.skipped.setdefault(query, []).append(action.slice_id)
            case Promote() | Demote():
                assert action.slice_id in self.reading

    def join(
        self, first: int, window: Window, horizon: Mapping[SliceId, int] | None = None
    ) -> tuple[Action, ...]:
        queries = tuple(
            Wanted(query=first + n, slices=ids(clusters)) for n, clusters in enumerate(window)
        )
        self.wants |= {wanted.query: wanted.slices for wanted in queries}
        return self.tell(Joined(queries=queries, horizon={} if horizon is None else horizon))

    def end_read(self, cluster: SliceId) -> None:
        del self.reading[cluster]
        self.resident.add(cluster)
        self.tell(ReadEnded(slice_id=cluster))

    def score(self, budget_us: int = 10) -> bool:
        tasks = self.planner.next_substage(budget_us, lambda cluster, queries: queries, self.now_us)
        if not tasks:
            return False
        for task in tasks:
            assert task.slice_id in self.resident, "scored before it was there"
            assert task.queries
            self.scored += [(task.slice_id, query) for query in task.queries]
        self.planner.check_integrity()
        self.tell(SubstageEnded())
        return True

    def work(
        self, choose: Callable[[Sequence[SliceId]], SliceId], until: Callable[[], bool]
    ) -> None:
        while not until():
            if self.score():
                continue
            if self.reading:
                self.end_read(choose(sorted(self.reading)))
            else:
                wake_us = self.planner.wake_us()
                assert wake_us is not None, "stands still: nothing to score, nothing being read"
                self.now_us = wake_us

    def settle(self) -> None:
        while self.reading:
            self.end_read(min(self.reading))


def world(
    sizes: Sequence[int],
    budget: int,
    *,
    read_ahead: int = 0,
    prefetch: int = 0,
    overtaken_max: int = 100,
) -> World:
    return World(
        {SliceId(cluster): size for cluster, size in enumerate(sizes)},
        ClusterMajorLimits(
            budget_bytes=budget,
            read_ahead_bytes=read_ahead or budget,
            prefetch_bytes=prefetch,
            overtaken_max=overtaken_max,
            overtake_us=1_000,
        ),
    )


def run(
    here: World,
    windows: Sequence[Window],
    choose: Callable[[Sequence[SliceId]], SliceId],
    ahead: int = 0,
) -> None:
    """Closed loop: the next window joins when the one before is done. `ahead`: windows that the
    horizon knows of.
    """
    first = 0
    for number, window in enumerate(windows):
        horizon: dict[SliceId, int] = {}
        for windows_until in range(ahead, 0, -1):
            if number + windows_until < len(windows):
                for clusters in windows[number + windows_until]:
                    horizon |= dict.fromkeys(ids(clusters), windows_until)
        here.join(first, window, horizon)
        first += len(window)
        expected = first
        here.work(choose, lambda expected=expected: len(here.finished) == expected)
