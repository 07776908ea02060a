"""The read planner and the next group: what is read ahead, pinned, used, late and wasted."""

from __future__ import annotations

import pytest

from schemas.record import ClusterId
from searcher.plan.reads import ReadPlanner
from searcher.plan.steps import Action, Deny, Evict, GroupEnded, NextChanged, QueryEnded
from searcher.plan.upcoming import next_query
from tests.searcher.read_plans import (
    A,
    B,
    C,
    D,
    E,
    F,
    demand,
    ended,
    failed,
    group,
    late,
    load,
    planner_of,
    prefetch,
    query,
    ram,
    released,
    run,
    ssd,
    used,
    wasted,
)


def searched(planner: ReadPlanner, position: int, *clusters: ClusterId) -> list[Action]:
    """A query is searched to its end; returns what was done beside granting to it."""
    actions = run(planner, query(position))
    for cluster in clusters:
        if demand(cluster) in actions:
            actions += run(planner, ended(cluster))
    for cluster in clusters:
        actions += run(planner, released(cluster))
    actions += run(planner, QueryEnded())
    mine = {ram(c) for c in clusters} | {ssd(c) for c in clusters} | {demand(c) for c in clusters}
    return [action for action in actions if action not in mine]


def test_next_groups_first_query_is_read_ahead_once_the_current_query_waits_for_no_read() -> None:
    """CaGR-RAG Alg. 1, step 4, begun before the last search of the group ends."""
    planner = planner_of(100)
    assert run(planner, group((A, B), then=(C, D))) == []
    assert run(planner, query(0)) == [demand(A), demand(B)]
    assert run(planner, ended(A)) == [ssd(A)]
    assert run(planner, ended(B)) == [ssd(B), prefetch(C), prefetch(D)]
    assert planner.pinned_bytes == 20
    run(planner, ended(C), ended(D), released(A), released(B), QueryEnded(), GroupEnded())
    assert run(planner, group((C, D))) == []
    assert run(planner, query(0)) == [used(C), ram(C), used(D), ram(D)]
    assert planner.pinned_bytes == 0


def test_nothing_is_read_ahead_between_the_start_of_a_group_and_its_first_query() -> None:
    planner = planner_of(100)
    load(planner, A)
    assert run(planner, group((A,), then=(B,))) == []
    assert run(planner, NextChanged(clusters=(C,))) == []
    assert run(planner, query(0)) == [ram(A), prefetch(C)]


def test_reading_ahead_goes_on_when_the_group_is_over() -> None:
    planner = planner_of(100, prefetch=1)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == [prefetch(B)]
    assert run(planner, GroupEnded(), ended(B)) == [prefetch(C)]
    assert run(planner, ended(C), NextChanged(clusters=(D,))) == [wasted(B), wasted(C), prefetch(D)]


def test_with_no_reads_allowed_for_it_nothing_is_read_ahead_nor_pinned() -> None:
    planner = planner_of(100, prefetch=0)
    load(planner, A, B)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == []
    assert planner.pinned_bytes == 0


def test_only_so_many_prefetches_are_in_flight() -> None:
    planner = planner_of(100, prefetch=2)
    run(planner, group((A,), then=(B, C, D, E)))
    assert searched(planner, 0, A) == [prefetch(B), prefetch(C)]
    assert run(planner, ended(C)) == [prefetch(D)]
    assert run(planner, ended(B), ended(D)) == [prefetch(E)]


def test_a_demand_does_not_wait_for_the_readers_that_prefetches_have() -> None:
    planner = planner_of(100, demand=1, prefetch=1)
    run(planner, group((A,), (D,), then=(B,)))
    assert searched(planner, 0, A) == [prefetch(B)]
    assert run(planner, query(1)) == [demand(D)]


def test_no_prefetch_starts_while_a_demand_waits_or_is_read() -> None:
    planner = planner_of(100, demand=1)
    run(planner, group((A, B), then=(C,)))
    assert run(planner, query(0)) == [demand(A)]
    assert run(planner, ended(A)) == [ssd(A), demand(B)]
    assert run(planner, released(A)) == []
    assert run(planner, failed(B)) == [Deny(cluster=B), prefetch(C)]


def test_a_demand_joins_a_prefetch_in_flight_and_is_late() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B,)))
    assert searched(planner, 0, A) == [prefetch(B)]
    run(planner, group((B, C)))
    assert run(planner, query(0)) == [late(B), demand(C)]
    assert planner.pinned_bytes == 0
    assert run(planner, ended(B)) == [ssd(B)]


def test_the_current_group_uses_what_was_read_for_the_next_and_it_stays_pinned_for_it() -> None:
    planner = planner_of(100)
    run(planner, group((A,), (B,), then=(B,)))
    assert searched(planner, 0, A) == [prefetch(B)]
    run(planner, ended(B))
    assert searched(planner, 1, B) == [used(B)]
    assert planner.pinned_bytes == 10


def test_what_is_resident_already_is_pinned_for_the_next_group_without_a_read() -> None:
    planner = planner_of(30)
    load(planner, A, B, C)
    run(planner, group((C,), (D,), then=(A,)))
    assert searched(planner, 0, C) == []
    assert planner.pinned_bytes == 10
    assert run(planner, query(1)) == [Evict(cluster=B), demand(D)]  # A is older, and pinned
    run(planner, ended(D), released(D), QueryEnded(), GroupEnded())
    assert planner.pinned_bytes == 10
    assert run(planner, group((A,)), query(0)) == [ram(A)]


def test_what_was_pinned_without_a_read_is_let_go_with_its_group_like_the_rest() -> None:
    planner = planner_of(30)
    load(planner, A, B)
    run(planner, group((B,), then=(A,)))
    searched(planner, 0, B)
    run(planner, group((B,)))
    assert planner.pinned_bytes == 10
    assert run(planner, GroupEnded()) == []
    assert planner.pinned_bytes == 0


def test_what_the_group_wants_later_goes_before_what_is_pinned() -> None:
    planner = planner_of(20)
    load(planner, A, B)
    run(planner, group((B,), then=(A,)))
    searched(planner, 0, B)
    run(planner, group((D,), (B,)))  # A is pinned for this group, which does not ask for it
    assert run(planner, query(0)) == [Evict(cluster=B), demand(D)]


def test_what_the_query_is_having_read_is_pinned_too_when_the_next_group_wants_it() -> None:
    planner = planner_of(100)
    run(planner, group((A, B), then=(B,)))
    run(planner, query(0), QueryEnded())  # given up while both are being read
    assert planner.pinned_bytes == 10
    assert planner.used_bytes == 20


def test_a_prefetch_never_evicts_what_the_current_group_wants() -> None:
    planner = planner_of(30)
    load(planner, A, B, C)
    run(planner, group((A,), (B,), (C,), then=(D,)))
    assert searched(planner, 0, A) == [
        Evict(cluster=A),
        prefetch(D),
    ]  # A only: nobody wants it any more
    run(planner, ended(D))
    assert searched(planner, 1, B) == []
    assert searched(planner, 2, C) == []


def test_a_prefetch_leaves_room_for_what_the_group_has_not_read_yet() -> None:
    planner = planner_of(30)
    run(planner, group((A,), (B,), (C,), then=(D,)))
    run(planner, query(0), ended(A))
    assert planner.used_bytes == 10  # 20 bytes are free, and B and C will want them
    assert run(planner, released(A)) == [prefetch(D)]
    assert planner.used_bytes == 20
    run(planner, ended(D), QueryEnded())
    assert searched(planner, 1, B) == []
    assert searched(planner, 2, C) == [Evict(cluster=A)]
    assert planner.residents() == {B, C, D}


def test_a_prefetch_does_not_evict_a_pin() -> None:
    planner = planner_of(30, prefetch=1)
    load(planner, A, B, C)
    run(planner, group((A,), then=(C, D, E)))
    assert run(planner, query(0)) == [ram(A), Evict(cluster=B), prefetch(D)]
    assert run(planner, ended(D)) == []  # A is wanted, C and D are pinned
    assert run(planner, released(A)) == []  # and the largest cluster must still fit beside the pins


def test_the_largest_cluster_always_fits_beside_what_is_pinned() -> None:
    sizes = {A: 10, B: 10, C: 10, D: 30}
    planner = planner_of(50, sizes=sizes, prefetch=3)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == [prefetch(B), prefetch(C)]
    planner = planner_of(49, sizes=sizes, prefetch=3)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == [prefetch(B)]
    # Advice that was wrong: the demand finds its bytes at once although B is still being read.
    run(planner, group((D,)))
    assert run(planner, query(0)) == [Evict(cluster=A), demand(D)]


@pytest.mark.parametrize(
    ("budget_bytes", "actions"), [(30, [wasted(B), prefetch(C)]), (29, [wasted(B)])]
)
def test_prefetches_that_are_still_read_for_advice_that_has_changed_leave_room_too(
    budget_bytes: int, actions: list[Action]
) -> None:
    planner = planner_of(budget_bytes)
    run(planner, group((A,), then=(B,)))
    assert searched(planner, 0, A) == [prefetch(B)]
    # B cannot be stopped; beside it and C the largest cluster must still fit.
    assert run(planner, NextChanged(clusters=(C,))) == actions


def test_a_demand_that_finds_no_other_bytes_takes_those_of_a_prefetched_cluster() -> None:
    planner = planner_of(30)
    run(planner, group((A,), then=(B, C)))
    run(planner, query(0), ended(A), released(A), ended(B), ended(C), GroupEnded())
    assert planner.residents() == {A, B, C}
    run(planner, group((D, E, F)))  # not what was advised
    assert run(planner, query(0)) == [
        Evict(cluster=A),
        demand(D),
        wasted(B),
        Evict(cluster=B),
        demand(E),
        wasted(C),
        Evict(cluster=C),
        demand(F),
    ]


def test_pins_outlast_the_group_before_and_end_with_their_own() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B, C)))
    searched(planner, 0, A)
    run(planner, ended(B), ended(C))
    assert run(planner, GroupEnded()) == []
    assert planner.pinned_bytes == 20
    run(planner, group((B,)))
    assert searched(planner, 0, B) == [used(B)]
    assert planner.pinned_bytes == 10
    assert run(planner, GroupEnded()) == [wasted(C)]
    assert planner.pinned_bytes == 0
    assert run(planner, GroupEnded()) == []


def test_a_group_that_begins_without_the_last_having_ended_ends_it() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B,)))
    searched(planner, 0, A)
    run(planner, ended(B))
    assert run(planner, group((C,))) == []
    assert run(planner, group((C,))) == [wasted(B)]


def test_a_prefetch_whose_group_has_passed_while_it_was_read_is_wasted_and_not_pinned() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B,)))
    searched(planner, 0, A)
    run(planner, group((C,)))
    assert run(planner, GroupEnded()) == [wasted(B)]
    assert run(planner, ended(B)) == []
    assert planner.pinned_bytes == 0
    assert planner.residents() == {A, B}


def test_new_knowledge_of_what_comes_next_replaces_the_advice() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == [prefetch(B), prefetch(C)]
    run(planner, ended(B), ended(C))
    assert run(planner, NextChanged(clusters=(C, D))) == [wasted(B), prefetch(D)]
    assert planner.pinned_bytes == 20
    assert run(planner, NextChanged(clusters=())) == [wasted(C), wasted(D)]


def test_new_knowledge_does_not_touch_what_is_kept_for_the_current_group() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B,)))
    searched(planner, 0, A)
    run(planner, ended(B), group((C,), (B,), then=(D,)))
    assert run(planner, NextChanged(clusters=(E,))) == []
    assert planner.pinned_bytes == 10
    assert searched(planner, 0, C) == [prefetch(E)]
    assert searched(planner, 1, B) == [used(B)]


def test_advice_about_clusters_that_are_not_in_this_index_is_passed_over() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(ClusterId(99), B, B, ClusterId(-1))))
    assert searched(planner, 0, A) == [prefetch(B)]


def test_a_prefetch_that_failed_is_not_tried_again_until_something_else_is_advised() -> None:
    planner = planner_of(100, prefetch=1)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == [prefetch(B)]
    assert run(planner, failed(B)) == [prefetch(C)]
    assert run(planner, ended(C)) == []
    assert planner.pinned_bytes == 10
    assert run(planner, NextChanged(clusters=(B, C))) == [prefetch(B)]


def test_a_demand_that_had_joined_a_prefetch_is_denied_when_it_fails() -> None:
    planner = planner_of(100)
    run(planner, group((A,), then=(B,)))
    searched(planner, 0, A)
    run(planner, group((B,)))
    assert run(planner, query(0)) == [late(B)]
    assert run(planner, failed(B)) == [Deny(cluster=B)]
    assert planner.used_bytes == 10


def test_a_prefetched_cluster_for_which_there_is_no_room_stops_the_rest() -> None:
    """Nearest first: a farther cluster is not read while a nearer one is not."""
    sizes = {A: 10, B: 30, C: 5, D: 25}
    planner = planner_of(59, sizes=sizes)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == []
    planner = planner_of(60, sizes=sizes, prefetch=1)
    run(planner, group((A,), then=(B, C)))
    assert searched(planner, 0, A) == [prefetch(B)]


def test_reads_in_flight_that_nobody_wants_are_not_overdrawn_by_a_prefetch() -> None:
    planner = planner_of(20, sizes={A: 10, B: 10, C: 10})
    run(planner, group((A, B), then=(C,)), query(0))
    assert run(planner, QueryEnded()) == []  # both are still being read: no bytes for C
    assert run(planner, ended(A)) == []  # nor beside B and a demand that may come
    assert run(planner, ended(B)) == [Evict(cluster=A), prefetch(C)]


# ---- the queries that come next


def test_what_is_in_hand_is_known_and_wins_over_advice() -> None:
    assert next_query((A, B), (C,)) == (A, B)
    assert next_query((), (C,)) == ()
    assert next_query(None, (C, D)) == (C, D)
    assert next_query(None, ()) == ()
