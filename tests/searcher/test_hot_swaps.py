"""The planner of the hot shard's changes, over any windows and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.record import ClusterId
from searcher.plan.hot_swaps import CHOICES, PART_SHARE, SUBSTAGES_MIN, HotSwaps, Swaps
from searcher.plan.page_test import PageTest

Window = Sequence[tuple[int, ...]]

NLIST = 60
NPROBE = 6
ROOM = 15
"""Clusters of one byte that fit the shard of the made-up streams."""


@dataclass
class Shard:
    """Carries out changes step by step, and checks what may never happen."""

    size_bytes: list[int]
    bytes_max: int
    planner: HotSwaps = field(init=False)
    there: set[int] = field(default_factory=set)
    changes: list[tuple[int, Swaps]] = field(default_factory=list)
    substages: int = 0

    def __post_init__(self) -> None:
        self.planner = HotSwaps(np.array(self.size_bytes, np.int64), self.bytes_max)

    def add(self, window: Window) -> None:
        self.planner.add_queries([[*map(ClusterId, query)] for query in window])

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

    def stream(self, windows: Sequence[Window], substages: int = 3) -> None:
        for window in windows:
            self.add(window)
            self.go(substages)

    @property
    def left(self) -> int:
        return sum(len(swaps.leave) for _, swaps in self.changes)


def swaps_of(leave: Sequence[int], enter: Sequence[int]) -> Swaps:
    return Swaps(tuple(map(ClusterId, leave)), tuple(map(ClusterId, enter)))


def draws(seed: int, windows: int, first: int = 0) -> list[Window]:
    """Queries that probe `ROOM` clusters from `first` on three times as often as others."""
    keys = np.random.default_rng(seed).gumbel(size=(windows, 20, NLIST))
    keys[:, :, np.arange(first, first + ROOM) % NLIST] += np.log(3)
    probes = np.argsort(-keys, axis=2)[:, :, :NPROBE].tolist()
    return [[tuple(query) for query in window] for window in probes]


def settled(seed: int) -> Shard:
    """A shard that queries have filled that want the clusters from 0 on."""
    shard = Shard([1] * NLIST, ROOM)
    shard.stream(draws(seed + 1_000, CHOICES[-1] // 20 + 20))
    assert len(shard.there & set(range(ROOM))) >= ROOM - 1
    shard.changes.clear()
    return shard


@st.composite
def streams(draw: st.DrawFn) -> tuple[Shard, list[Window]]:
    nlist = draw(st.integers(2, 12))
    sizes = draw(st.lists(st.integers(0, 9), min_size=nlist, max_size=nlist))
    query = st.lists(st.integers(0, nlist - 1), max_size=nlist, unique=True).map(tuple)
    kinds = draw(st.lists(st.lists(query, min_size=1, max_size=9), min_size=1, max_size=3))
    repeats = st.lists(st.sampled_from(kinds), min_size=1, max_size=30)
    windows: list[Window] = [one * draw(st.integers(1, 60)) for one in draw(repeats)]
    return Shard(sizes, draw(st.integers(0, sum(sizes) + 1))), windows


@given(streams(), st.integers(1, 60))
def test_bytes_and_the_time_between_changes_are_bounded(
    case: tuple[Shard, list[Window]], substages: int
) -> None:
    shard, windows = case
    shard.stream(windows, substages)
    entered: list[int] = []
    for at, swaps in shard.changes:
        assert at >= SUBSTAGES_MIN and swaps.enter
        assert not set(swaps.leave) & set(swaps.enter)
        entering_bytes = sum(shard.size_bytes[one] for one in swaps.enter)
        assert len(swaps.enter) == 1 or entering_bytes <= PART_SHARE * shard.bytes_max
        entered += swaps.enter
    # A cluster enters at most once in a change, and changes begin once in 50 sub-stages.
    for cluster in set(entered):
        assert entered.count(cluster) <= shard.substages // SUBSTAGES_MIN


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


@pytest.mark.parametrize("seed", range(2))
def test_nothing_changes_while_questions_stay_the_same(seed: int) -> None:
    shard = settled(seed)
    shard.stream(draws(seed, 200))
    assert not shard.changes


def test_the_hot_set_becomes_the_clusters_with_the_highest_counts() -> None:
    shard = settled(0)
    shard.stream(draws(0, 60, first=30))
    assert len(shard.there & set(range(30, 30 + ROOM))) >= ROOM - 2
    shard.stream(draws(1, 120, first=30))  # the last choice is of 2,000 queries
    shard.stream(draws(2, 120, first=15))  # and it follows a second time
    assert len(shard.there & set(range(15, 15 + ROOM))) >= ROOM - 1


def test_an_empty_shard_is_filled_after_some_queries_and_filled_better_after_more() -> None:
    shard = Shard([1] * NLIST, ROOM)
    shard.stream(draws(0, 4), substages=20)  # 80 queries
    assert not shard.there
    shard.stream(draws(1, 2), substages=20)
    assert len(shard.there) == ROOM and shard.left == 0
    shard.stream(draws(2, 120))
    assert shard.there == set(range(ROOM))


def test_clusters_enter_hottest_first_and_the_coldest_leave() -> None:
    shard = Shard([1] * 8, 4)
    shard.add([(0,)] * 80 + [(1,)] * 60 + [(2,)] * 40 + [(3,)] * 20)
    shard.go(SUBSTAGES_MIN - 1)
    assert not shard.changes
    shard.go(6)
    assert [swaps for _, swaps in shard.changes] == [swaps_of([], [one]) for one in range(4)]
    shard.add([(5,)] * 190 + [(4,)] * 180 + [(7,)] * 70)
    shard.go(2 * SUBSTAGES_MIN)
    changed = [swaps_of([3], [5]), swaps_of([2], [4]), swaps_of([1], [7])]
    assert [swaps for _, swaps in shard.changes[4:]] == changed


def test_no_change_begins_before_the_last_one_has_ended() -> None:
    shard = Shard([1] * 4, 3)
    shard.add([(0, 1)] * 200 + [(2,)] * 100)
    shard.go(SUBSTAGES_MIN - 1)
    assert shard.substage() == swaps_of([], [0])
    shard.planner.left(ClusterId(0))  # it could not be loaded
    assert shard.substage() == swaps_of([], [1])
    assert shard.substage() == swaps_of([], [2])
    shard.enter(ClusterId(1))
    shard.add([(0, 1)] * 400)
    assert not any(shard.substage() for _ in range(2 * SUBSTAGES_MIN))  # 2 is not loaded
    shard.enter(ClusterId(2))
    assert shard.substage() == swaps_of([], [0])


def test_a_cluster_that_could_not_be_loaded_at_the_last_choice_is_tried_again() -> None:
    shard = Shard([1] * 4, 3)
    shard.add([(0, 1)] * CHOICES[-1])
    shard.go(SUBSTAGES_MIN - 1)
    for _ in range(2):
        assert shard.substage() == swaps_of([], [0])
        shard.planner.left(ClusterId(0))
        shard.add([(0, 1)] * (CHOICES[-1] - 1))
        shard.go(SUBSTAGES_MIN)
        assert 0 not in shard.there and 1 in shard.there
        shard.add([(0, 1)])
    shard.go(1)
    assert shard.there == {0, 1}
    shard.add([(0, 1)] * 3 * CHOICES[-1])
    shard.go(2 * SUBSTAGES_MIN)
    assert shard.changes[-1][1] == swaps_of([], [0])


# ---- Page's test


def alarm_after(values: np.ndarray, test: PageTest) -> int | None:
    """Feeds values one by one and returns the number of the first that raises an alarm."""
    for number, value in enumerate(values.tolist()):
        if test.has_fallen([value]):
            return number
    return None


@pytest.mark.parametrize("seed", range(2))
def test_values_that_stay_raise_no_alarm_among_ten_thousand(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.4, 0.2, 10_000)
    assert alarm_after(values, PageTest()) is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("fall", "values_max"), [(0.2, 60), (0.1, 300)])
def test_a_fall_is_found_soon(seed: int, fall: float, values_max: int) -> None:
    random = np.random.default_rng(seed)
    test = PageTest()
    assert alarm_after(random.normal(0.4, 0.2, 500), test) is None
    found = alarm_after(random.normal(0.4 - fall, 0.2, 500), test)
    assert found is not None and found <= values_max


def test_a_rise_a_small_fall_and_equal_values_raise_no_alarm() -> None:
    random = np.random.default_rng(0)
    for values in (
        random.normal(0.6, 0.2, 3_000),
        random.normal(0.38, 0.2, 3_000),
        np.full(1_000, 0.4),
    ):
        test = PageTest()
        assert not test.has_fallen(random.normal(0.4, 0.2, 300).tolist())
        assert alarm_after(values, test) is None
    assert alarm_after(np.full(1_000, 0.4), PageTest()) is None
