"""The cluster-major planner over any windows, ends and failures: each cluster once, and the books
right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from searcher.plan.cluster_steps import Dropped, ReadFailed, RoomFreed
from searcher.plan.slices import SliceId
from tests.searcher.cluster_worlds import Window, ids, run, world


def wanted_pairs(windows: Sequence[Window]) -> list[tuple[int, int]]:
    queries = [clusters for window in windows for clusters in window]
    return sorted(
        (cluster, query) for query, clusters in enumerate(queries) for cluster in clusters
    )


sizes_and_windows = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 20), min_size=count, max_size=count),
        st.lists(
            st.lists(
                st.lists(
                    st.integers(0, count - 1), min_size=1, max_size=min(count, 5), unique=True
                ).map(tuple),
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


@given(sizes_and_windows)
def test_every_query_gets_each_of_its_clusters_once_and_each_cluster_is_read_at_most_once_a_window(
    case,
) -> None:  # type: ignore[no-untyped-def]
    sizes, windows, budget, read_ahead, prefetch, ahead, seed = case
    here = world(sizes, budget, read_ahead=read_ahead, prefetch=prefetch)
    run(here, windows, random.Random(seed).choice, ahead)
    assert sorted(here.scored) == wanted_pairs(windows)
    assert all(not skipped for skipped in here.finished.values())
    if not prefetch:
        distinct = sum(
            len({cluster for clusters in window for cluster in clusters}) for window in windows
        )
        assert len(here.reads) <= distinct


@given(sizes_and_windows)
def test_what_is_read_and_evicted_does_not_depend_on_the_order_in_which_reads_end(case) -> None:
    sizes, windows, budget, read_ahead, _, _, seed = case
    runs = []
    for choose in (min, max, random.Random(seed).choice):
        here = world(sizes, budget, read_ahead=read_ahead)
        run(here, windows, choose)
        runs.append((here.reads, here.evictions, here.scored))
    assert runs[0][:2] == runs[1][:2] == runs[2][:2]


@given(sizes_and_windows, st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_anything_may_join_leave_and_fail_at_any_time_and_the_books_stay_right(
    case, choices
) -> None:  # type: ignore[no-untyped-def]
    sizes, windows, budget, read_ahead, prefetch, _, seed = case
    here = world(sizes, budget, read_ahead=read_ahead, prefetch=prefetch)
    dice = random.Random(seed)
    pending = list(windows)
    dropped: set[int] = set()
    stuck: list[SliceId] = []
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
            is_stuck = dice.random() < 0.5
            del here.reading[cluster]
            here.tell(ReadFailed(slice_id=cluster, is_stuck=is_stuck))
            stuck += [cluster] if is_stuck else []
        elif choice == 3 and first:
            query = dice.randrange(first)
            dropped |= {query} - here.finished.keys()
            here.tell(Dropped(query=query))
        elif choice == 4 and stuck:
            here.tell(RoomFreed(slice_id=stuck.pop()))
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
