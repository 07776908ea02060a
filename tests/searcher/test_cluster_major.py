"""The cluster-major planner against a dumb disk that ends reads in any order, and stated traces
with their counts.
"""

from __future__ import annotations

from searcher.plan.cluster_steps import (
    Demote,
    Dropped,
    Joined,
    Promote,
    ReadFailed,
    RoomFreed,
    SubstageEnded,
    Wanted,
)
from searcher.plan.slices import SliceId
from tests.searcher.cluster_worlds import ids, run, world


def test_a_window_of_three_reads_each_cluster_once_and_the_shortest_query_is_done_first() -> None:
    here = world([10, 10, 10, 10, 10], 100)
    here.join(0, [(0, 1, 2), (2, 3), (3,)])
    assert here.reads == [3, 2, 1, 0] or here.reads == [3, 2, 0, 1]
    here.end_read(SliceId(2))
    assert not here.score(), "cluster 3 comes first"
    here.end_read(SliceId(3))
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
    here.end_read(SliceId(0))
    assert here.reads == [0, 1], (
        "room is made when something was scored, not when something arrived"
    )
    here.score()
    assert here.reads == [0, 1, 2]


def test_query_that_joins_while_its_cluster_is_being_scored_has_it_scored_without_read() -> None:
    here = world([10] * 2, 20)
    here.join(0, [(0,)])
    here.end_read(SliceId(0))
    tasks = here.planner.next_substage(10, lambda cluster, queries: 1, 0)
    assert tasks[0].queries == (0,)
    here.join(1, [(0,)])
    here.tell(SubstageEnded())
    assert list(here.finished) == [0]
    assert here.score()
    assert list(here.finished) == [0, 1] and here.reads == [0]


def test_a_slow_head_is_passed_over_after_a_while() -> None:
    here = world([10] * 2, 20)
    here.join(0, [(0, 1)])
    here.end_read(SliceId(1))
    assert not here.score()
    assert here.planner.wake_us() == 1_000
    here.now_us = 1_000
    assert here.score()
    assert here.scored == [(1, 0)]


def test_queries_skip_clusters_when_stuck_reads_use_the_whole_budget() -> None:
    here = world([10] * 2, 10)
    here.join(0, [(0, 1)])
    del here.reading[SliceId(0)]
    here.tell(ReadFailed(slice_id=SliceId(0), is_stuck=True))
    assert here.finished == {0: (0, 1)}
    here.tell(RoomFreed(slice_id=SliceId(0)))
    here.join(1, [(1,)])
    here.work(min, lambda: len(here.finished) == 2)
    assert here.finished[1] == ()


def test_the_next_window_is_read_ahead_and_its_clusters_are_not_read_twice() -> None:
    here = world([10] * 6, 60, prefetch=20)
    here.join(0, [(0, 1)], {SliceId(2): 1, SliceId(3): 1, SliceId(4): 2})
    assert here.reads[:2] == [0, 1] and sorted(here.reads[2:]) == [2, 3], (
        "two fit prefetch_bytes, the soonest ones"
    )
    here.work(min, lambda: len(here.finished) == 1)
    actions = here.join(1, [(2, 3)])
    assert {
        action.slice_id for action in actions if isinstance(action, Promote)
    } == here.reading.keys() & {2, 3}
    here.work(min, lambda: len(here.finished) == 2)
    assert sorted(here.reads) == [0, 1, 2, 3]


def test_reading_ahead_evicts_nothing_that_is_wanted_as_soon() -> None:
    here = world([10] * 6, 40, prefetch=40)
    run(here, [[(0, 1, 2)]], min)
    here.join(1, [(0,)], dict.fromkeys(ids((0, 1, 2, 4, 5)), 1))
    assert here.reads == [0, 1, 2, 4] and not here.evictions, (
        "4 takes what is free; for 5 something as soon would go"
    )


def test_a_query_that_was_overtaken_too_often_goes_first() -> None:
    sizes = [1] * 10 + [30]
    lazy, strict = (
        world(sizes, 31, read_ahead=1, overtaken_max=100),
        world(sizes, 31, read_ahead=1, overtaken_max=2),
    )
    for here in (lazy, strict):
        here.join(0, [(9,)])  # keeps the disk busy while the others join
        here.join(1, [(10,), *((cluster,) for cluster in range(6))])
        here.work(min, lambda here=here: len(here.finished) == 8)  # type: ignore[misc]
    assert list(lazy.finished).index(1) == 7
    assert list(strict.finished).index(1) == 3


def test_a_query_with_a_deadline_is_not_overtaken() -> None:
    here = world([30, 1, 1], 32, read_ahead=1)
    queries = (
        Wanted(query=0, slices=ids([1])),
        Wanted(query=1, slices=ids([0]), deadline_us=5),
    )
    here.tell(Joined(queries=queries, horizon={}))
    assert here.reads == [0]


def test_a_query_that_is_dropped_gives_its_clusters_back() -> None:
    here = world([10] * 3, 20)
    here.join(0, [(0, 1)])
    assert here.tell(Dropped(query=0)) == (
        Demote(slice_id=ids([0])[0]),
        Demote(slice_id=ids([1])[0]),
    )
    assert here.tell(Dropped(query=0)) == ()
    here.join(1, [(2,)])
    here.work(min, lambda: len(here.finished) == 1)
    assert here.finished == {1: ()}


def test_reads_of_dropped_queries_come_last_until_another_query_wants_them() -> None:
    here = world([10] * 3, 20)
    here.join(0, [(0, 1)])
    here.tell(Dropped(query=0))
    actions = here.join(1, [(1,)])
    assert actions == (Promote(slice_id=SliceId(1)),) and sorted(here.reads) == [0, 1]
    here.end_read(SliceId(1))
    assert here.score() and 1 in here.finished


def test_no_scoring_waits_for_a_late_slice_whose_queries_were_dropped() -> None:
    here = world([5, 5], 10)
    here.join(0, [(0, 1)])
    here.end_read(here.reads[1])
    assert not here.score() and here.planner.wake_us() is not None
    here.tell(Dropped(query=0))
    assert not here.score() and here.planner.wake_us() is None
