"""The cluster-major planner against a dumb disk that ends reads in any order, and stated traces with their counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.record import ClusterId
from searcher.cache.lru import Lru
from searcher.plan.cluster_major import ClusterMajorLimits, ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Action,
    Cancel,
    Dropped,
    Event,
    Evict,
    Finish,
    Joined,
    Promote,
    Read,
    ReadEnded,
    ReadFailed,
    Skip,
    SpaceFreed,
    SubstageEnded,
    Wanted,
)

Window = Sequence[tuple[int, ...]]


def ids(clusters: Sequence[int]) -> tuple[ClusterId, ...]:
    return tuple(ClusterId(cluster) for cluster in clusters)


@dataclass
class World:
    """Does what the planner says, and checks every word of it: a memory of sets, a disk of pending reads."""

    sizes: Mapping[ClusterId, int]
    limits: ClusterMajorLimits
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
        self.planner = ClusterMajorPlanner(self.limits, self.sizes, Lru())

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

    def join(self, first: int, window: Window, horizon: Mapping[ClusterId, int] | None = None) -> tuple[Action, ...]:
        queries = tuple(Wanted(query=first + n, clusters=ids(clusters)) for n, clusters in enumerate(window))
        self.wants |= {wanted.query: wanted.clusters for wanted in queries}
        return self.tell(Joined(queries=queries, horizon={} if horizon is None else horizon))

    def end_read(self, cluster: ClusterId) -> None:
        del self.reading[cluster]
        self.resident.add(cluster)
        self.cancelled.discard(cluster)
        self.tell(ReadEnded(cluster=cluster))

    def score(self, budget_us: int = 10) -> bool:
        substage = self.planner.next_substage(budget_us, lambda cluster, queries: queries, self.now_us)
        if substage is None:
            return False
        for task in substage.tasks:
            assert task.cluster in self.resident, "scored before it was there"
            assert task.queries
            self.scored += [(task.cluster, query) for query in task.queries]
        self.planner.check_integrity()
        self.tell(SubstageEnded())
        return True

    def work(self, choose: Callable[[Sequence[ClusterId]], ClusterId], until: Callable[[], bool]) -> None:
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
    sizes: Sequence[int], budget: int, *, read_ahead: int = 0, prefetch: int = 0, overtaken_max: int = 100
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
    )


def run(
    here: World, windows: Sequence[Window], choose: Callable[[Sequence[ClusterId]], ClusterId], ahead: int = 0
) -> None:
    """Closed loop: the next window joins when the one before is done. `ahead`: windows that the horizon knows of."""
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


def wanted_pairs(windows: Sequence[Window]) -> list[tuple[int, int]]:
    queries = [clusters for window in windows for clusters in window]
    return sorted((cluster, query) for query, clusters in enumerate(queries) for cluster in clusters)


sizes_and_windows = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 20), min_size=count, max_size=count),
        st.lists(
            st.lists(
                st.lists(st.integers(0, count - 1), min_size=1, max_size=min(count, 5), unique=True).map(tuple),
                min_size=1,
                max_size=6,
            ),
            min_size=1,
            max_size=5,
        ),
        st.integers(20, 120),
        st.integers(1, 60),
        st.integers(0, 40),
        st.integers(0, 3),
        st.integers(0, 2**32),
    )
)


@settings(max_examples=300, deadline=None)
@given(sizes_and_windows)
def test_every_query_gets_each_of_its_clusters_once_and_each_cluster_is_read_at_most_once_a_window(case) -> None:  # type: ignore[no-untyped-def]
    sizes, windows, budget, read_ahead, prefetch, ahead, seed = case
    here = world(sizes, budget, read_ahead=read_ahead, prefetch=prefetch)
    run(here, windows, random.Random(seed).choice, ahead)
    assert sorted(here.scored) == wanted_pairs(windows)
    assert all(not skipped for skipped in here.finished.values())
    if not prefetch:
        distinct = sum(len({cluster for clusters in window for cluster in clusters}) for window in windows)
        assert len(here.reads) <= distinct


@settings(max_examples=200, deadline=None)
@given(sizes_and_windows)
def test_what_is_read_and_evicted_does_not_depend_on_the_order_in_which_reads_end(case) -> None:  # type: ignore[no-untyped-def]
    sizes, windows, budget, read_ahead, _, _, seed = case
    runs = []
    for choose in (min, max, random.Random(seed).choice):
        here = world(sizes, budget, read_ahead=read_ahead)
        run(here, windows, choose)
        runs.append((here.reads, here.evictions, here.scored))
    assert runs[0][:2] == runs[1][:2] == runs[2][:2]


@settings(max_examples=200, deadline=None)
@given(sizes_and_windows, st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_anything_may_join_leave_and_fail_at_any_time_and_the_books_stay_right(case, choices) -> None:  # type: ignore[no-untyped-def]
    sizes, windows, budget, read_ahead, prefetch, _, seed = case
    here = world(sizes, budget, read_ahead=read_ahead, prefetch=prefetch)
    dice = random.Random(seed)
    pending = list(windows)
    dropped: set[int] = set()
    stuck: list[ClusterId] = []
    first = 0
    for choice in choices:
        if choice == 0 and pending:
            window = pending.pop()
            here.join(first, window, dict.fromkeys(ids(range(len(sizes))), dice.randint(1, 3)))
            first += len(window)
        elif choice == 1 and here.reading:
            here.end_read(dice.choice(sorted(here.reading)))
        elif choice == 2 and here.reading:
            cluster = dice.choice(sorted(here.reading))
            is_cancelled = cluster in here.cancelled
            is_stuck = not is_cancelled and dice.random() < 0.5
            here.cancelled.discard(cluster)
            del here.reading[cluster]
            here.tell(ReadFailed(cluster=cluster, is_stuck=is_stuck, is_cancelled=is_cancelled))
            stuck += [cluster] if is_stuck else []
        elif choice == 3 and first:
            query = dice.randrange(first)
            dropped |= {query} - here.finished.keys()
            here.tell(Dropped(query=query))
        elif choice == 4 and stuck:
            here.tell(SpaceFreed(cluster=stuck.pop()))
        else:
            here.score()
    here.work(min, lambda: not len(here.planner))
    here.settle()
    assert here.finished.keys() | dropped == set(range(first))
    assert not here.finished.keys() & dropped
    for query, skipped in here.finished.items():
        scored = [cluster for cluster, number in here.scored if number == query]
        assert sorted(scored + list(skipped)) == sorted(here.wants[query])
        assert list(skipped) == here.skipped.get(query, [])


def test_a_window_of_three_reads_each_cluster_once_and_the_shortest_query_is_done_first() -> None:
    here = world([10, 10, 10, 10, 10], 100)
    here.join(0, [(0, 1, 2), (2, 3), (3,)])
    assert here.reads == [3, 2, 1, 0] or here.reads == [3, 2, 0, 1]
    here.end_read(ClusterId(2))
    assert not here.score(), "cluster 3 comes first"
    here.end_read(ClusterId(3))
    assert here.score()
    assert list(here.finished) == [2, 1]


def test_residents_are_scored_first_and_not_read_again() -> None:
    here = world([10] * 4, 20)
    run(here, [[(0, 1)], [(1, 2)], [(2, 1)]], min)
    assert here.reads == [0, 1, 2], "1 stayed while 2 came, since 0 was used longest ago"
    assert here.evictions == [0]


def test_a_substage_is_as_long_as_its_time_allows_unless_the_disk_could_run_dry_meanwhile() -> None:
    here = world([10] * 6, 100, read_ahead=20)
    run(here, [[(0, 1, 2, 3, 4)]], min)
    here.join(1, [(0, 1, 2, 3, 4)])
    assert here.score(budget_us=1_000)
    assert 1 in here.finished, "all that is wanted is in memory, and was scored at once"
    here.join(2, [(0, 1, 2, 3, 4, 5)])
    assert here.reading == {5: 2}
    before = len(here.scored)
    assert here.score(budget_us=1_000)
    assert len(here.scored) == before + 1, "half of what is under way is 10 bytes: one cluster"


def test_what_is_read_ahead_is_bounded_by_read_ahead_bytes() -> None:
    here = world([10] * 6, 100, read_ahead=20)
    here.join(0, [(0, 1, 2, 3, 4, 5)])
    assert here.reads == [0, 1]
    here.end_read(ClusterId(0))
    assert here.reads == [0, 1], "room is made when something was scored, not when something arrived"
    here.score()
    assert here.reads == [0, 1, 2]


def test_a_query_that_joins_shares_the_read_that_is_on_its_way() -> None:
    here = world([10] * 3, 30)
    here.join(0, [(0, 1)])
    here.join(1, [(1, 2)])
    here.work(min, lambda: len(here.finished) == 2)
    assert sorted(here.reads) == [0, 1, 2]


def test_a_query_that_joins_while_its_cluster_is_being_scored_has_it_scored_again_without_a_read() -> None:
    here = world([10] * 2, 20)
    here.join(0, [(0,)])
    here.end_read(ClusterId(0))
    substage = here.planner.next_substage(10, lambda cluster, queries: 1, 0)
    assert substage is not None and substage.tasks[0].queries == (0,)
    here.join(1, [(0,)])
    here.tell(SubstageEnded())
    assert list(here.finished) == [0]
    assert here.score()
    assert list(here.finished) == [0, 1] and here.reads == [0]


def test_a_failed_read_finishes_only_the_queries_that_wanted_it() -> None:
    here = world([10] * 3, 30)
    here.join(0, [(0, 1), (1, 2)])
    del here.reading[ClusterId(0)]
    here.tell(ReadFailed(cluster=ClusterId(0)))
    assert here.skipped == {0: [0]}
    here.work(min, lambda: len(here.finished) == 2)
    assert here.finished == {0: (0,), 1: ()}


def test_a_slow_head_is_passed_over_after_a_while() -> None:
    here = world([10] * 2, 20)
    here.join(0, [(0, 1)])
    here.end_read(ClusterId(1))
    assert not here.score()
    assert here.planner.wake_us() == 1_000
    here.now_us = 1_000
    assert here.score()
    assert here.scored == [(1, 0)]


def test_when_reads_that_never_return_own_the_whole_budget_queries_go_without_and_do_not_wait_for_ever() -> None:
    here = world([10] * 2, 10)
    here.join(0, [(0, 1)])
    del here.reading[ClusterId(0)]
    here.tell(ReadFailed(cluster=ClusterId(0), is_stuck=True))
    assert here.finished == {0: (0, 1)}
    here.tell(SpaceFreed(cluster=ClusterId(0)))
    here.join(1, [(1,)])
    here.work(min, lambda: len(here.finished) == 2)
    assert here.finished[1] == ()


def test_the_next_window_is_read_ahead_and_its_clusters_are_not_read_twice() -> None:
    here = world([10] * 6, 60, prefetch=20)
    here.join(0, [(0, 1)], {ClusterId(2): 1, ClusterId(3): 1, ClusterId(4): 2})
    assert here.reads[:2] == [0, 1] and sorted(here.reads[2:]) == [2, 3], "two fit prefetch_bytes, the soonest ones"
    here.work(min, lambda: len(here.finished) == 1)
    actions = here.join(1, [(2, 3)])
    assert {action.cluster for action in actions if isinstance(action, Promote)} == here.reading.keys() & {2, 3}
    here.work(min, lambda: len(here.finished) == 2)
    assert sorted(here.reads) == [0, 1, 2, 3]


def test_reading_ahead_evicts_nothing_that_is_wanted_as_soon() -> None:
    here = world([10] * 6, 40, prefetch=40)
    run(here, [[(0, 1, 2)]], min)
    here.join(1, [(0,)], {ClusterId(1): 1, ClusterId(2): 1, ClusterId(4): 1, ClusterId(5): 1})
    assert here.reads == [0, 1, 2, 4] and not here.evictions, "4 takes what is free; for 5 something as soon would go"


def test_a_query_that_was_overtaken_too_often_goes_first() -> None:
    sizes = [1] * 10 + [30]
    lazy, strict = world(sizes, 31, read_ahead=1, overtaken_max=100), world(sizes, 31, read_ahead=1, overtaken_max=2)
    for here in (lazy, strict):
        here.join(0, [(9,)])  # keeps the disk busy while the others join
        here.join(1, [(10,), *((cluster,) for cluster in range(6))])
        here.work(min, lambda here=here: len(here.finished) == 8)  # type: ignore[misc]
    assert list(lazy.finished).index(1) == 7
    assert list(strict.finished).index(1) == 3


def test_a_query_with_a_deadline_is_not_overtaken() -> None:
    here = world([30, 1, 1], 32, read_ahead=1)
    queries = (Wanted(query=0, clusters=ids([1])), Wanted(query=1, clusters=ids([0]), deadline_us=5))
    here.tell(Joined(queries=queries, horizon={}))
    assert here.reads == [0]


def test_a_query_that_is_dropped_gives_its_clusters_back() -> None:
    here = world([10] * 3, 20)
    here.join(0, [(0, 1)])
    here.tell(Dropped(query=0))
    here.tell(Dropped(query=0))
    here.join(1, [(2,)])
    assert here.cancelled == {0, 1}, "what nobody wants makes way for what somebody does"
    here.cancelled.clear()
    del here.reading[ClusterId(0)]
    here.tell(ReadFailed(cluster=ClusterId(0), is_cancelled=True))
    here.work(min, lambda: len(here.finished) == 1)
    assert here.finished == {1: ()}


@pytest.mark.parametrize("budget", [9, 0])
def test_a_cluster_larger_than_the_budget_is_refused(budget: int) -> None:
    with pytest.raises(AssertionError, match="larger than the whole budget"):
        world([10], budget, read_ahead=1)
