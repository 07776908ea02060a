"""The planner of the hot shard's changes, over any windows, horizons and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.record import ClusterId
from searcher.plan.hot_swaps import (
    CHURN_SHARE,
    PART_SHARE,
    QUERIES_MIN,
    SUBSTAGES_MIN,
    HotSwaps,
    Swaps,
    decayed_counts,
)

Query = tuple[int, ...]
Window = Sequence[Query]

NLIST = 60
NPROBE = 6
ROOM = 15
"""Clusters of one byte that fit the shard of the made-up streams."""


@dataclass
class Shard:
    """Carries out changes step by step, and checks what may never happen."""

    size_bytes: list[int]
    bytes_max: int
    hot: Sequence[int] = ()
    counts: np.ndarray | None = None
    planner: HotSwaps = field(init=False)
    there: set[int] = field(init=False)
    changes: list[tuple[int, Swaps]] = field(default_factory=list)
    substages: int = 0

    def __post_init__(self) -> None:
        counts = np.zeros(len(self.size_bytes)) if self.counts is None else self.counts
        sizes = np.array(self.size_bytes, np.int64)
        self.planner = HotSwaps(sizes, self.bytes_max, list(map(ClusterId, self.hot)), counts)
        self.there = set(self.hot)

    def add(self, window: Window, waiting: Sequence[Window] = ()) -> None:
        horizon = Counter(ClusterId(one) for later in waiting for query in later for one in query)
        self.planner.add_window([[*map(ClusterId, query)] for query in window], horizon)

    def substage(self) -> Swaps | None:
        self.substages += 1
        swaps = self.planner.substage()
        if swaps is not None:
            self.changes.append((self.substages, swaps))
        return swaps

    def leave(self, cluster: ClusterId) -> None:
        self.there.remove(cluster)
        self.planner.left(cluster)

    def enter(self, cluster: ClusterId) -> None:
        assert cluster not in self.there
        self.there.add(cluster)
        assert sum(self.size_bytes[one] for one in self.there) <= self.bytes_max
        self.planner.loaded(cluster)

    def go(self, substages: int) -> None:
        for _ in range(substages):
            if (swaps := self.substage()) is not None:
                for cluster in swaps.leave:
                    self.leave(cluster)
                for cluster in swaps.enter:
                    self.enter(cluster)
                self.planner.check_integrity()

    def stream(self, windows: Sequence[Window], *, ahead: int = 0, substages: int = 3) -> None:
        for number, window in enumerate(windows):
            self.add(window, windows[number + 1 : number + 1 + ahead])
            self.go(substages)

    @property
    def left(self) -> int:
        return sum(len(swaps.leave) for _, swaps in self.changes)


def swaps_of(leave: Sequence[int], enter: Sequence[int]) -> Swaps:
    return Swaps(tuple(map(ClusterId, leave)), tuple(map(ClusterId, enter)))


def draws(seed: int, windows: int, first: int = 0, *, queries: int = 20) -> list[Window]:
    """Queries that probe `ROOM` clusters from `first` on three times as often as others."""
    keys = np.random.default_rng(seed).gumbel(size=(windows, queries, NLIST))
    keys[:, :, np.arange(first, first + ROOM) % NLIST] += np.log(3)
    probes = np.argsort(-keys, axis=2)[:, :, :NPROBE].tolist()
    return [[tuple(query) for query in window] for window in probes]


def settled(seed: int) -> Shard:
    """A shard with the clusters from 0 on, profiled with queries that want them."""
    profile = [query for window in draws(seed + 1_000, 50) for query in window]
    return Shard([1] * NLIST, ROOM, range(ROOM), decayed_counts(profile, NLIST))


# ---- any events


@st.composite
def streams(draw: st.DrawFn) -> tuple[Shard, list[Window]]:
    nlist = draw(st.integers(2, 12))
    sizes = draw(st.lists(st.integers(0, 9), min_size=nlist, max_size=nlist))
    bytes_max = draw(st.integers(0, sum(sizes) + 1))
    hot: list[int] = []
    for cluster in draw(st.permutations(range(nlist))):
        if sum(sizes[one] for one in (*hot, cluster)) <= bytes_max:
            hot.append(cluster)
    counts = draw(st.none() | st.lists(st.floats(0, 99), min_size=nlist, max_size=nlist))
    query = st.lists(st.integers(0, nlist - 1), max_size=nlist, unique=True).map(tuple)
    kinds = draw(st.lists(st.lists(query, min_size=1, max_size=9), min_size=1, max_size=3))
    repeats = st.lists(st.sampled_from(kinds), min_size=1, max_size=30)
    windows: list[Window] = [one * draw(st.integers(1, 12)) for one in draw(repeats)]
    shard = Shard(sizes, bytes_max, hot, None if counts is None else np.array(counts))
    return shard, windows


@settings(max_examples=200, deadline=None)
@given(streams(), st.data())
def test_bytes_churn_and_the_time_between_changes_are_bounded(
    case: tuple[Shard, list[Window]], data: st.DataObject
) -> None:
    shard, windows = case
    ahead = data.draw(st.integers(0, 3))
    shard.stream(windows, ahead=ahead, substages=data.draw(st.integers(1, 60)))
    # Changes begin once in 50 sub-stages; the last part of each may let two clusters leave.
    churn_max = CHURN_SHARE * shard.bytes_max + 2 * max(shard.size_bytes)
    left_bytes = 0
    for at, swaps in shard.changes:
        assert at >= SUBSTAGES_MIN
        left_bytes += sum(shard.size_bytes[one] for one in swaps.leave)
        assert left_bytes <= at // SUBSTAGES_MIN * churn_max
        assert not set(swaps.leave) & set(swaps.enter)
        entering_bytes = sum(shard.size_bytes[one] for one in swaps.enter)
        assert len(swaps.enter) == 1 or entering_bytes <= PART_SHARE * shard.bytes_max
        assert swaps.enter


@settings(max_examples=100, deadline=None)
@given(streams(), st.data())
def test_what_failed_takes_no_room_and_parts_may_be_late(
    case: tuple[Shard, list[Window]], data: st.DataObject
) -> None:
    shard, windows = case
    running: list[tuple[ClusterId, bool]] = []
    for window in windows:
        shard.add(window)
        for _ in range(data.draw(st.sampled_from([1, 30, 60]))):
            swaps = shard.substage()
            if swaps is not None:
                running += [(cluster, False) for cluster in swaps.leave]
                running += [(cluster, True) for cluster in swaps.enter]
            if running and data.draw(st.booleans()):
                cluster, enters = running.pop(0)
                if not enters:
                    shard.leave(cluster)
                elif data.draw(st.booleans()):
                    shard.enter(cluster)
                else:
                    shard.planner.left(cluster)
            shard.planner.check_integrity()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1_000), st.integers(0, 3))
def test_the_same_stream_gives_the_same_changes(seed: int, ahead: int) -> None:
    windows = [*draws(seed, 10), *draws(seed + 1, 30, first=30)]
    runs = [settled(seed), settled(seed)]
    for shard in runs:
        shard.stream(windows, ahead=ahead)
    assert runs[0].changes == runs[1].changes


# ---- streams that change, or do not


@pytest.mark.parametrize("seed", range(20))
def test_nothing_leaves_while_questions_stay_the_same(seed: int) -> None:
    shard = settled(seed)
    shard.stream(draws(seed, 200))
    assert shard.left == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("queries", [1, 20, 100])
def test_the_hot_set_becomes_the_clusters_with_the_highest_counts(seed: int, queries: int) -> None:
    shard = settled(seed)
    windows = draws(seed, 1_200 // queries, first=30, queries=queries)
    shard.stream(windows, substages=-(-queries // 8))
    assert len(shard.there & set(range(30, 30 + ROOM))) >= ROOM - 1


@pytest.mark.parametrize("seed", range(5))
def test_it_settles_again_and_follows_a_second_time(seed: int) -> None:
    shard = settled(seed)
    shard.stream(draws(seed, 80, first=30))
    assert shard.planner.is_settled
    changes = len(shard.changes)
    shard.stream(draws(seed + 1, 60, first=30))
    assert len(shard.changes) == changes
    shard.stream(draws(seed + 2, 60, first=15))
    assert len(shard.there & set(range(15, 15 + ROOM))) >= ROOM - 1


def test_a_shard_without_counts_fills_as_they_come_and_settles() -> None:
    shard = Shard([1] * NLIST, ROOM)
    shard.stream(draws(0, 22))
    assert len(shard.there) == ROOM
    assert shard.left == 0
    shard.stream(draws(1, 80))
    assert shard.there == set(range(ROOM))
    assert shard.planner.is_settled


def test_clusters_enter_hottest_first_and_the_coldest_leave() -> None:
    shard = Shard([1] * 8, 4)
    cold = [(0,)] * 8 + [(1,)] * 6 + [(2,)] * 4 + [(3,)] * 2
    shard.add(cold)
    shard.go(SUBSTAGES_MIN - 1)
    assert not shard.changes
    shard.go(4)
    assert [swaps for _, swaps in shard.changes] == [swaps_of([], [one]) for one in range(4)]
    hot = [(5,)] * 90 + [(4,)] * 80 + [(7,)] * 70
    shard.add(hot)
    shard.go(SUBSTAGES_MIN)
    # Half of the shard may leave.
    assert [swaps for _, swaps in shard.changes[4:]] == [swaps_of([3], [5]), swaps_of([2], [4])]


def test_small_clusters_enter_together() -> None:
    shard = Shard([1] * 300, 200)
    shard.add([tuple(range(300))] * 9 + [(5, 3)])
    shard.go(SUBSTAGES_MIN)
    assert [swaps for _, swaps in shard.changes] == [swaps_of([], [3, 5])]


def test_as_few_leave_as_what_enters_needs() -> None:
    shard = Shard([3, 1, 1, 1, 2], 6, (0, 1, 2, 3))
    shard.add([(0,)] * 9 + [(1,)] * 3 + [(2,)] * 2 + [(3,)] + [(4,)] * 200)
    shard.go(SUBSTAGES_MIN)
    assert [swaps for _, swaps in shard.changes] == [swaps_of([3, 2], [4])]


def test_clusters_of_equal_counts_do_not_replace_each_other() -> None:
    shard = Shard([1] * 6, 3)
    for _ in range(100):
        for pair in (0, 1), (2, 3), (4, 5):
            shard.add([pair] * 4)
            shard.go(20)
    assert len(shard.there) == 3
    assert shard.left == 0


def test_a_cluster_that_could_not_be_loaded_is_wanted_again_after_the_others() -> None:
    shard = Shard([1] * 4, 3)
    shard.add([(0, 1)] * 20 + [(2,)] * 10)
    shard.go(SUBSTAGES_MIN - 1)
    assert shard.substage() == swaps_of([], [0])
    shard.planner.left(ClusterId(0))
    assert shard.substage() == swaps_of([], [1])
    assert shard.substage() == swaps_of([], [2])
    shard.enter(ClusterId(1))
    assert not any(shard.substage() for _ in range(2 * SUBSTAGES_MIN))  # 2 is not loaded
    shard.enter(ClusterId(2))
    assert shard.substage() == swaps_of([], [0])


# ---- the horizon


def _alarm_at(seed: int, ahead: int) -> int:
    """The window at whose begin the hit rate has fallen; questions change in window 20."""
    shard = settled(seed)
    windows = [*draws(seed, 20, queries=5), *draws(seed + 1, 40, first=30, queries=5)]
    for number, window in enumerate(windows):
        shard.add(window, windows[number + 1 : number + 1 + ahead])
        if not shard.planner.is_settled:
            return number
    raise AssertionError("no alarm")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_query_that_waits_is_tested_once_and_that_many_windows_sooner(
    seed: int, ahead: int
) -> None:
    sooner = _alarm_at(seed, 0) - _alarm_at(seed, ahead)
    # What is learnt of the mean in these windows differs, so it may be a window more or less.
    assert ahead - 1 <= sooner <= ahead + 1


def test_a_query_that_waited_counts_once_when_it_arrives() -> None:
    waited, came = Shard([1] * 4, 2), Shard([1] * 4, 2)
    window: Window = [(0, 1)] * 3 + [(2,)] * 2
    waited.add([(3,)], [window])
    came.add([(3,)])
    for shard in (waited, came):
        shard.add(window)
        shard.add([(2,)])  # 2 and 1 are level if the window counts once
        shard.go(SUBSTAGES_MIN)
    assert waited.changes == came.changes


def test_parts_of_a_window_are_one_window() -> None:
    together, apart = settled(0), settled(0)
    windows = [*draws(0, 10), *draws(1, 40, first=30)]
    for number, window in enumerate(windows):
        horizon = Counter(
            ClusterId(one)
            for later in windows[number + 1 : number + 4]
            for query in later
            for one in query
        )
        parts = [[*map(ClusterId, query)] for query in window]
        together.planner.add_window(parts, horizon)
        apart.planner.add_window(parts[:10], horizon)
        apart.planner.add_window(parts[10:], None)
        assert apart.planner.is_settled == together.planner.is_settled
        together.go(3)
        apart.go(3)
    assert [at for at, _ in together.changes] == [at for at, _ in apart.changes]
    assert together.there == apart.there


@pytest.mark.parametrize("seed", range(5))
def test_with_the_horizon_the_shard_changes_sooner(seed: int) -> None:
    windows = [*draws(seed, 20), *draws(seed + 1, 30, first=30)]
    alone, knowing = settled(seed), settled(seed)
    alone.stream(windows)
    knowing.stream(windows, ahead=4)
    assert knowing.changes[0][0] <= alone.changes[0][0] - 6  # two windows of three sub-stages


def test_clusters_leave_only_when_enough_queries_are_known() -> None:
    shard = settled(0)
    known = 0
    followed_from = None
    for window in draws(1, 60, first=30):
        shard.add(window)
        known += len(window)
        if followed_from is None and not shard.planner.is_settled:
            followed_from = known
        shard.go(3)
        if shard.left:
            break
    assert followed_from is not None
    assert known - followed_from >= QUERIES_MIN


def test_clusters_that_the_index_does_not_have_are_ignored_in_the_horizon() -> None:
    shard = Shard([1] * 4, 2)
    shard.planner.add_window(
        [[ClusterId(0)]], {ClusterId(99): 5, ClusterId(-1): 5, ClusterId(2): 5}
    )
    shard.go(SUBSTAGES_MIN + 1)
    assert shard.there == {0, 2}
