"""The planner of paged codes, over any windows, failures and drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.record import ClusterId
from searcher.plan.paged_codes import (
    OVERTAKEN_MAX,
    EvictCodes,
    PagedCodesPlanner,
    ReadCodes,
    ScanCodes,
)

Window = list[tuple[int, ...]]


@dataclass
class World:
    """Carries out a planner's steps and keeps what was done."""

    sizes: Sequence[int]
    budget: int
    planner: PagedCodesPlanner = field(init=False)
    there: set[int] = field(default_factory=set)
    reads: list[int] = field(default_factory=list)
    unscanned: dict[int, set[int]] = field(default_factory=dict)
    complete: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.planner = PagedCodesPlanner(self.sizes, self.budget)
        self.there.update(one for one, size in enumerate(self.sizes) if not size)

    def join(self, first: int, window: Window) -> None:
        for at, clusters in enumerate(window):
            self.unscanned[first + at] = set(clusters)
            self.planner.join(first + at, np.array(clusters))

    def round(self) -> bool:
        steps = self.planner.plan()
        for step in steps:
            match step:
                case ReadCodes(cluster, keys):
                    assert cluster not in self.there
                    self.there.add(cluster)
                    self.reads.append(cluster)
                    assert sum(self.sizes[one] for one in self.there) <= self.budget
                    self.scan([(key, cluster) for key in keys.tolist()])
                case EvictCodes(cluster):
                    self.there.remove(cluster)
                case ScanCodes(keys, clusters):
                    self.scan(list(zip(keys.tolist(), clusters.tolist(), strict=True)))
        self.planner.check_integrity()
        return bool(steps)

    def scan(self, pairs: list[tuple[int, int]]) -> None:
        assert pairs
        for key, cluster in pairs:
            assert cluster in self.there
            self.unscanned[key].remove(cluster)
            if not self.unscanned[key]:
                self.complete.append(key)

    def fail(self, cluster: int) -> None:
        for key in self.planner.fail(ClusterId(cluster)).tolist():
            self.unscanned[key].remove(cluster)
            if not self.unscanned[key]:
                self.complete.append(key)
        self.there.discard(cluster)

    def run(self) -> None:
        while self.round():
            pass


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[Window]]:
    count = draw(st.integers(2, 14))
    sizes = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    budget = draw(st.integers(max(sizes), max(max(sizes), sum(sizes))))
    cluster = st.integers(0, count - 1)
    query = st.lists(cluster, min_size=1, max_size=count, unique=True).map(tuple)
    windows = draw(st.lists(st.lists(query, min_size=1, max_size=8), min_size=1, max_size=5))
    return World(sizes, budget), windows


@given(worlds())
def test_each_query_is_scanned_once_over_its_clusters_and_a_window_reads_each_cluster_once(
    case: tuple[World, list[Window]],
) -> None:
    world, windows = case
    first = 0
    for number, window in enumerate(windows):
        following = [one for later in windows[number + 1 : number + 2] for one in later]
        world.planner.expect({ClusterId(one): 1 for query in following for one in query})
        world.join(first, window)
        world.reads.clear()
        world.run()
        assert len(world.reads) == len(set(world.reads))
        assert not any(world.unscanned.values())
        first += len(window)
    assert sorted(world.complete) == list(range(first))
    assert not len(world.planner)


@given(worlds(), st.data())
def test_queries_that_are_dropped_and_clusters_that_fail_keep_nobody_waiting(
    case: tuple[World, list[Window]], data: st.DataObject
) -> None:
    world, windows = case
    first, dropped = 0, set()
    for window in windows:
        world.join(first, window)
        first += len(window)
        for _ in range(data.draw(st.integers(0, 3))):
            world.round()
        if data.draw(st.booleans()):
            key = data.draw(st.integers(0, first - 1))
            world.planner.drop(key)
            dropped.add(key)
        if data.draw(st.booleans()):
            world.fail(data.draw(st.integers(0, len(world.sizes) - 1)))
        world.planner.check_integrity()
    world.run()
    assert set(world.complete) | dropped == set(range(first))
    assert len(world.complete) == len(set(world.complete))


def test_clusters_that_the_next_windows_need_stay() -> None:
    world = World([1] * 6, 3)
    world.join(0, [(0, 1, 2)])
    world.run()
    world.planner.expect({ClusterId(1): 1, ClusterId(0): 3})
    world.join(1, [(4, 5)])
    world.run()
    assert world.there == {0, 1, 5}  # 4 was scanned, and no known window needs it


def test_advice_about_clusters_that_do_not_exist_is_ignored() -> None:
    world = World([1] * 3, 3)
    world.planner.expect({ClusterId(99): 1, ClusterId(2): 1})
    world.join(0, [(0, 1)])
    world.run()
    assert world.complete == [0]


def test_a_query_with_many_bytes_is_not_overtaken_for_ever() -> None:
    world = World([1] * 24, 4)
    world.join(0, [(20, 21, 22, 23)])
    for key in range(1, OVERTAKEN_MAX + 2):
        world.join(key, [(key % 20,)])  # never in memory: 20 clusters come in turn
        assert 0 not in world.complete
        world.round()
    assert 0 in world.complete


def test_the_query_with_the_fewest_missing_bytes_is_first() -> None:
    world = World([1] * 9, 9)
    world.join(0, [(0, 1, 2, 3), (4, 5), (5, 6, 7)])
    world.run()
    assert world.complete == [1, 2, 0]
