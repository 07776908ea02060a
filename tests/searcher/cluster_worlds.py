"""A planner in a world whose reads and scorings end when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
    Skip,
    SubstageEnded,
    Wanted,
)
from searcher.plan.eviction.lru import Lru
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.limits import ClusterMajorLimits

Window = Sequence[tuple[int, ...]]


def ids(clusters: Sequence[int]) -> tuple[ClusterId, ...]:
    return tuple(ClusterId(cluster) for cluster in clusters)


@dataclass
class World:
    """Does what the planner says, and checks every word of it: a memory of sets, a disk of pending
    reads.
    """

    sizes: Mapping[ClusterId, int]
    limits: ClusterMajorLimits
    policy: CachePolicy = field(default_factory=Lru)
    planner: ClusterMajorPlanner = field(init=False)
    resident: set[ClusterId] = field(default_factory=set)
    reading: dict[ClusterId, int | None] = field(default_factory=dict)
    reads: list[ClusterId] = field(default_factory=list)
    evictions: list[ClusterId] = field(default_factory=list)
    scored: list[tuple[ClusterId, int]] = field(default_factory=list)
    finished: dict[int, tuple[ClusterId, ...]] = field(default_factory=dict)
    skipped: dict[int, list[ClusterId]] = field(default_factory=dict)
    wants: dict[int, tuple[ClusterId, ...]] = field(default_factory=dict)
    cancelled: set[ClusterId] = field(default_factory=set)
    now_us: int = 0

    def __post_init__(self) -> None:
        self.planner = ClusterMajorPlanner(self.limits, self.sizes, self.policy)

    def tell(self, event: Event) -> tuple[Action, ...]:
        actions = self.planner.step(event)
        for action in actions:
            self._do(action)
        self.planner.check_integrity()
        assert self.planner.used_bytes <= self.limits.budget_bytes
        return actions

    def _do(self, action: Action) -> None:
        match action:
            case Read():
                assert action.cluster not in self.resident and action.cluster not in self.reading
                self.reading[action.cluster] = action.query
                self.reads.append(action.cluster)
            case Evict():
                self.resident.remove(action.cluster)
                self.evictions.append(action.cluster)
            case Finish():
                assert action.query not in self.finished, "finished twice"
                self.finished[action.query] = action.skipped
            case Skip():
                for query in action.queries:
                    self.skipped.setdefault(query, []).append(action.cluster)
            case Cancel():
                assert action.cluster in self.reading
                self.cancelled.add(action.cluster)
            case Promote():
                assert action.cluster in self.reading

    def join(
        self, first: int, window: Window, horizon: Mapping[ClusterId, int] | None = None
    ) -> tuple[Action, ...]:
        queries = tuple(
            Wanted(query=first + n, clusters=ids(clusters)) for n, clusters in enumerate(window)
        )
        self.wants |= {wanted.query: wanted.clusters for wanted in queries}
        return self.tell(Joined(queries=queries, horizon={} if horizon is None else horizon))

    def end_read(self, cluster: ClusterId) -> None:
        del self.reading[cluster]
        self.resident.add(cluster)
        self.cancelled.discard(cluster)
        self.tell(ReadEnded(cluster=cluster))

    def score(self, budget_us: int = 10) -> bool:
        substage = self.planner.next_substage(
            budget_us, lambda cluster, queries: queries, self.now_us
        )
        if substage is None:
            return False
        for task in substage.tasks:
            assert task.cluster in self.resident, "scored before it was there"
            assert task.queries
            self.scored += [(task.cluster, query) for query in task.queries]
        self.planner.check_integrity()
        self.tell(SubstageEnded())
        return True

    def work(
        self, choose: Callable[[Sequence[ClusterId]], ClusterId], until: Callable[[], bool]
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
    policy: CachePolicy | None = None,
) -> World:
    return World(
        {ClusterId(cluster): size for cluster, size in enumerate(sizes)},
        ClusterMajorLimits(
            budget_bytes=budget,
            read_ahead_bytes=read_ahead or budget,
            prefetch_bytes=prefetch,
            overtaken_max=overtaken_max,
            overtake_us=1_000,
        ),
        Lru() if policy is None else policy,
    )


def run(
    here: World,
    windows: Sequence[Window],
    choose: Callable[[Sequence[ClusterId]], ClusterId],
    ahead: int = 0,
) -> None:
    """Closed loop: the next window joins when the one before is done. `ahead`: windows that the
    horizon knows of.
    """
    first = 0
    for number, window in enumerate(windows):
        horizon: dict[ClusterId, int] = {}
        for windows_until in range(ahead, 0, -1):
            if number + windows_until < len(windows):
                for clusters in windows[number + windows_until]:
                    horizon |= dict.fromkeys(ids(clusters), windows_until)
        here.join(first, window, horizon)
        first += len(window)
        expected = first
        here.work(choose, lambda expected=expected: len(here.finished) == expected)  # type: ignore[misc]
