"""Traces of the planner of reads, with the actions that each event must bring."""

from __future__ import annotations

from collections.abc import Mapping, Set

import pytest

from schemas.record import ClusterId
from searcher.cache.lru import Lru
from searcher.cache.policy import CachePolicy
from searcher.plan.reads import PrefetchMode, ReadLimits, ReadPlanner
from searcher.plan.steps import (
    Action,
    Deny,
    Event,
    Evict,
    Grant,
    GroupBegan,
    GroupEnded,
    NextChanged,
    PrefetchEnded,
    QueryBegan,
    QueryEnded,
    Read,
    ReadEnded,
    ReadFailed,
    Released,
    SpaceFreed,
)
from searcher.plan.upcoming import next_query

A, B, C, D, E, F, G = (ClusterId(c) for c in range(7))
TEN_EACH = dict.fromkeys((A, B, C, D, E, F, G), 10)


def planner_of(
    budget_bytes: int,
    *,
    demand: int = 4,
    prefetch: int = 2,
    sizes: Mapping[ClusterId, int] = TEN_EACH,
    policy: CachePolicy | None = None,
    mode: PrefetchMode = "overlapped",
) -> ReadPlanner:
    limits = ReadLimits(budget_bytes=budget_bytes, demand_reads_max=demand, prefetch_reads_max=prefetch, prefetch=mode)
    return ReadPlanner(limits, sizes, policy or Lru())


def group(*queries: tuple[ClusterId, ...], then: tuple[ClusterId, ...] = ()) -> GroupBegan:
    return GroupBegan(queries=queries, next_query=then)


def demand(cluster: ClusterId) -> Read:
    return Read(cluster=cluster, purpose="demand")


def prefetch(cluster: ClusterId) -> Read:
    return Read(cluster=cluster, purpose="prefetch")


def used(cluster: ClusterId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="used")


def late(cluster: ClusterId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="late")


def wasted(cluster: ClusterId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="wasted")


def ram(cluster: ClusterId) -> Grant:
    return Grant(cluster=cluster, tier="ram")


def ssd(cluster: ClusterId) -> Grant:
    return Grant(cluster=cluster, tier="ssd")


def query(position: int) -> QueryBegan:
    return QueryBegan(position=position)


def ended(cluster: ClusterId) -> ReadEnded:
    return ReadEnded(cluster=cluster)


def failed(cluster: ClusterId) -> ReadFailed:
    return ReadFailed(cluster=cluster)


def released(cluster: ClusterId) -> Released:
    return Released(cluster=cluster)


def run(planner: ReadPlanner, *events: Event) -> list[Action]:
    """All actions of these events; the books are checked after each."""
    actions: list[Action] = []
    for event in events:
        actions += planner.step(event)
        planner.check_integrity()
    return actions


def load(planner: ReadPlanner, *clusters: ClusterId) -> None:
    """Makes clusters resident by a group that asks for one after the other."""
    run(planner, group(*((cluster,) for cluster in clusters)))
    for position, cluster in enumerate(clusters):
        if demand(cluster) in run(planner, query(position)):
            run(planner, ended(cluster))
        run(planner, released(cluster), QueryEnded())
    run(planner, GroupEnded())


def test_before_the_first_group_there_is_nothing_to_do_but_to_read_ahead() -> None:
    planner = planner_of(30)
    assert run(planner, QueryEnded(), GroupEnded()) == []
    with pytest.raises(AssertionError):
        planner.step(query(0))
    assert run(planner, NextChanged(clusters=(A,))) == [prefetch(A)]
    assert run(planner, ended(A), group((A,)), query(0)) == [used(A), ram(A)]


# ---- demand


def test_what_a_query_lacks_is_read_nearest_first_and_what_is_there_is_granted_at_once() -> None:
    planner = planner_of(100)
    load(planner, B)
    assert run(planner, group((A, B, C))) == []
    assert run(planner, query(0)) == [ram(B), demand(A), demand(C)]
    assert (planner.used_bytes, planner.reading_bytes, planner.pinned_bytes) == (30, 20, 0)
    assert run(planner, ended(C)) == [ssd(C)]
    assert run(planner, released(B), released(C)) == []
    assert run(planner, ended(A)) == [ssd(A)]
    assert planner.residents() == {A, B, C}
    assert (planner.used_bytes, planner.reading_bytes) == (30, 0)


def test_no_more_reads_are_in_flight_than_readers_for_demand() -> None:
    planner = planner_of(100, demand=2)
    run(planner, group((A, B, C, D)))
    assert run(planner, query(0)) == [demand(A), demand(B)]
    assert run(planner, ended(B)) == [ssd(B), demand(C)]
    assert run(planner, failed(C)) == [Deny(cluster=C), demand(D)]


def test_one_cluster_in_the_budget_is_enough_for_a_query_that_probes_many() -> None:
    planner = planner_of(10)
    run(planner, group((A, B, C)))
    assert run(planner, query(0)) == [demand(A)]
    assert run(planner, ended(A)) == [ssd(A)]
    assert run(planner, released(A)) == [Evict(cluster=A), demand(B)]
    assert run(planner, ended(B), released(B)) == [ssd(B), Evict(cluster=B), demand(C)]
    assert run(planner, ended(C), released(C), QueryEnded(), GroupEnded()) == [ssd(C)]


def test_a_read_waits_until_scoring_frees_what_it_needs_and_evicts_nothing_before() -> None:
    planner = planner_of(20, sizes={A: 6, B: 6, C: 15})
    load(planner, A, B)
    run(planner, group((A, C, B)))
    assert run(planner, query(0)) == [ram(A), ram(B)]
    assert run(planner, released(B)) == []  # 6 held, 15 more do not fit
    assert run(planner, released(A)) == [Evict(cluster=A), Evict(cluster=B), demand(C)]


def test_a_read_that_just_fits_beside_what_is_held_starts() -> None:
    planner = planner_of(21, sizes={A: 6, B: 6, C: 15})
    load(planner, A, B)
    run(planner, group((A, C, B)), query(0))
    assert run(planner, released(B)) == [Evict(cluster=B), demand(C)]


def test_bytes_of_reads_in_flight_count_as_held() -> None:
    planner = planner_of(20, sizes={A: 12, B: 9})
    run(planner, group((A, B)))
    assert run(planner, query(0)) == [demand(A)]
    assert run(planner, ended(A)) == [ssd(A)]
    assert run(planner, released(A)) == [Evict(cluster=A), demand(B)]


def test_the_budget_may_be_filled_to_the_last_byte() -> None:
    planner = planner_of(20)
    run(planner, group((A, B)))
    assert run(planner, query(0)) == [demand(A), demand(B)]
    assert planner.used_bytes == 20


def test_the_policy_chooses_among_what_nobody_wants() -> None:
    planner = planner_of(30)
    load(planner, A, B, C)
    run(planner, group((A,), (D,)))
    run(planner, query(0), released(A), QueryEnded())
    assert run(planner, query(1)) == [Evict(cluster=B), demand(D)]  # B is older than A now


def test_what_the_group_wants_later_is_evicted_last() -> None:
    planner = planner_of(30)
    load(planner, A, B, C)
    run(planner, group((D,), (A,), (B,)))
    assert run(planner, query(0)) == [Evict(cluster=C), demand(D)]  # A is the oldest, but wanted
    run(planner, ended(D), released(D), QueryEnded())
    assert run(planner, query(1), released(A), QueryEnded()) == [ram(A)]


def test_what_a_later_query_wants_goes_when_nothing_else_is_left() -> None:
    planner = planner_of(20)
    load(planner, A, B)
    run(planner, group((C,), (A,), (B,)))
    assert run(planner, query(0)) == [Evict(cluster=A), demand(C)]


def test_a_cluster_is_wanted_until_the_last_query_that_asks_for_it_has_released_it() -> None:
    planner = planner_of(20)
    load(planner, A, B)
    run(planner, group((A,), (A,), (C,)))
    run(planner, query(0), released(A))
    run(planner, query(1), released(A))
    run(planner, query(2))
    assert planner.residents() == {A}  # B went, it was older than A


def test_skipped_queries_want_nothing_any_more() -> None:
    planner = planner_of(30)
    load(planner, A, B, C)
    run(planner, group((A,), (B,), (D,), (C,)))
    assert run(planner, query(2)) == [Evict(cluster=A), demand(D)]  # A is not spared for a query that was skipped


def test_a_query_that_names_a_cluster_twice_gets_it_once() -> None:
    planner = planner_of(30)
    run(planner, group((A, B, A)))
    assert run(planner, query(0)) == [demand(A), demand(B)]
    assert run(planner, ended(A), released(A), ended(B), released(B), QueryEnded()) == [ssd(A), ssd(B)]
    load(planner, C)
    run(planner, group((B,), (D,)), query(0), released(B))
    assert run(planner, query(1)) == [Evict(cluster=A), demand(D)]  # A is not wanted by books that count it twice


def test_a_failed_read_denies_the_cluster_and_frees_its_bytes() -> None:
    planner = planner_of(10)
    run(planner, group((A, B)))
    run(planner, query(0))
    assert run(planner, failed(A)) == [Deny(cluster=A), demand(B)]
    assert planner.used_bytes == 10
    assert planner.residents() == set()


def test_a_cluster_whose_read_failed_is_read_again_for_the_next_query() -> None:
    planner = planner_of(30)
    run(planner, group((A,), (A,)))
    assert run(planner, query(0), failed(A), QueryEnded()) == [demand(A), Deny(cluster=A)]
    assert run(planner, query(1), ended(A)) == [demand(A), ssd(A)]


def test_a_query_that_is_given_up_lets_go_of_everything() -> None:
    planner = planner_of(20, demand=2)
    load(planner, A)
    run(planner, group((A, B, C), (D, E)))
    assert run(planner, query(0)) == [ram(A), demand(B)]
    assert run(planner, QueryEnded()) == []  # C is not waited for any more
    assert run(planner, ended(B)) == []  # read for nobody now, but resident
    assert planner.residents() == {A, B}
    assert run(planner, query(1)) == [Evict(cluster=A), demand(D), Evict(cluster=B), demand(E)]


def test_a_query_joins_the_read_that_an_abandoned_one_began() -> None:
    planner = planner_of(30)
    run(planner, group((A,), (A,)), query(0), QueryEnded())
    assert run(planner, query(1)) == []
    assert run(planner, ended(A)) == [ssd(A)]


def test_a_new_query_ends_the_one_before_it_and_a_new_group_the_group() -> None:
    planner = planner_of(30)
    load(planner, A)
    run(planner, group((A,), (B,)), query(0), query(1), ended(B))
    assert run(planner, group((A,)), query(0)) == [ram(A)]


@pytest.mark.parametrize("position", [-1, 2])
def test_a_query_that_is_not_in_the_group_is_a_fault(position: int) -> None:
    planner = planner_of(30)
    run(planner, group((A,), (B,)))
    with pytest.raises(AssertionError):
        planner.step(query(position))


def test_queries_do_not_go_backwards_nor_twice() -> None:
    planner = planner_of(30)
    run(planner, group((A,), (B,)), query(0))
    with pytest.raises(AssertionError):
        planner.step(query(0))
    run(planner, query(1))
    with pytest.raises(AssertionError):
        planner.step(query(0))


def test_a_cluster_larger_than_the_budget_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        planner_of(9)
    planner_of(10)
    planner_of(0, sizes={})


def test_every_request_is_told_to_the_policy_and_no_prefetch_is() -> None:
    class Counting(Lru):
        touched: list[ClusterId] = []  # noqa: RUF012

        def touch(self, cluster: ClusterId) -> None:
            self.touched.append(cluster)
            super().touch(cluster)

    planner = planner_of(100, policy=Counting())
    run(planner, group((A, B), (B,), then=(C,)))
    run(planner, query(0), ended(A), ended(B), released(A), released(B), query(1), released(B))
    assert Counting.touched == [A, B, B]
    assert C in planner._reading


# ---- reading ahead


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


def test_the_next_groups_first_query_is_read_ahead_once_the_current_query_waits_for_no_read() -> None:
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
    assert searched(planner, 0, A) == [Evict(cluster=A), prefetch(D)]  # A only: nobody wants it any more
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


@pytest.mark.parametrize(("budget_bytes", "actions"), [(30, [wasted(B), prefetch(C)]), (29, [wasted(B)])])
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


# ---- the books


class Lying(Lru):
    """A policy whose books can be made wrong."""

    lie: frozenset[ClusterId] | None = None

    def residents(self) -> frozenset[ClusterId]:
        return super().residents() if self.lie is None else self.lie

    def victim(self, protected: Set[ClusterId]) -> ClusterId | None:
        return super().victim(protected)


# ---- the baselines: no prefetch, and CaGR-RAG's to the letter


def test_with_prefetch_none_nothing_is_read_ahead() -> None:
    planner = planner_of(100, mode="none")
    assert run(planner, group((A,), then=(B,)), query(0), ended(A), released(A), QueryEnded(), GroupEnded()) == [
        demand(A),
        ssd(A),
    ]


def test_after_the_last_search_of_a_group_the_next_groups_first_query_is_prefetched() -> None:
    """CaGR-RAG, Alg. 1, lines 35-37."""
    planner = planner_of(100, mode="after_group", prefetch=2)
    events = (group((A,), (B,), then=(C, A, D, E)), query(0), ended(A), released(A), QueryEnded(), query(1), ended(B))
    assert run(planner, *events) == [demand(A), ssd(A), demand(B), ssd(B)]
    assert run(planner, released(B), QueryEnded()) == []
    assert run(planner, GroupEnded()) == [prefetch(C), prefetch(D)]
    assert run(planner, ended(C)) == [prefetch(E)]
    assert planner.pinned_bytes == 0


def test_to_the_letter_a_prefetch_evicts_by_policy_what_the_next_group_wants_too() -> None:
    """Nothing in Alg. 1 protects what is in the cache: reading D evicts A, the oldest, which the next query wants."""
    planner = planner_of(20, mode="after_group")
    load(planner, A, B)
    run(planner, group((B,), then=(A, D)), query(0), released(B), QueryEnded())
    assert run(planner, GroupEnded()) == [Evict(cluster=A), prefetch(D)]
    assert run(planner, ended(D), group((A, D)), query(0)) == [used(D), ram(D), Evict(cluster=B), demand(A)]


def test_to_the_letter_what_was_prefetched_and_evicted_unused_is_wasted_and_read_once_a_group() -> None:
    planner = planner_of(10, mode="after_group")
    run(planner, group((A,), then=(B, C)), query(0), ended(A), released(A), QueryEnded())
    assert run(planner, GroupEnded()) == [Evict(cluster=A), prefetch(B)]
    assert run(planner, ended(B)) == [wasted(B), Evict(cluster=B), prefetch(C)]
    assert run(planner, ended(C), group((B, C))) == []


def test_to_the_letter_the_next_query_joins_what_is_being_prefetched_and_takes_over_the_rest() -> None:
    planner = planner_of(100, mode="after_group", prefetch=1)
    run(planner, group((A,), then=(B, C)), query(0), ended(A), released(A), QueryEnded())
    assert run(planner, GroupEnded()) == [prefetch(B)]
    assert run(planner, group((B, C)), query(0)) == [late(B), demand(C)]
    assert run(planner, ended(B)) == [ssd(B)]


def test_the_policy_hears_of_each_window_once() -> None:
    horizons: list[Mapping[ClusterId, int]] = []

    class Listening(Lru):
        def foresee(self, horizon: Mapping[ClusterId, int]) -> None:
            horizons.append(horizon)

    planner = planner_of(30, policy=Listening())
    run(planner, GroupBegan(queries=((A,),), horizon={B: 1}), GroupEnded())
    run(planner, GroupBegan(queries=((A,),)), GroupEnded(), GroupBegan(queries=((A,),), horizon={}))
    assert horizons == [{B: 1}, {}]


# ---- reads that never return


def stuck(cluster: ClusterId) -> ReadFailed:
    return ReadFailed(cluster=cluster, is_stuck=True)


def test_the_bytes_of_a_stuck_read_stay_reserved_until_they_come_back() -> None:
    planner = planner_of(30)
    assert run(planner, group((A,), (B, C)), query(0), stuck(A)) == [demand(A), Deny(cluster=A)]
    assert (planner.used_bytes, planner.reading_bytes) == (10, 0)
    run(planner, query(1), ended(B), ended(C), released(B), released(C))
    assert planner.used_bytes == 30
    assert run(planner, group((D,)), query(0)) == [Evict(cluster=B), demand(D)]
    assert run(planner, SpaceFreed(cluster=A)) == []
    assert planner.used_bytes == 20


def test_a_stuck_cluster_is_read_again_for_the_next_query_and_may_be_stuck_twice() -> None:
    planner = planner_of(30)
    run(planner, group((A,), (A,), (A,)), query(0), stuck(A))
    assert run(planner, query(1), stuck(A)) == [demand(A), Deny(cluster=A)]
    assert planner.used_bytes == 20
    assert run(planner, query(2), ended(A)) == [demand(A), ssd(A)]
    run(planner, SpaceFreed(cluster=A), SpaceFreed(cluster=A))
    assert planner.used_bytes == 10


def test_a_query_for_which_stuck_reads_leave_no_room_is_denied_instead_of_waiting_for_ever() -> None:
    planner = planner_of(30, sizes={A: 10, B: 15, C: 20})
    run(planner, group((B,)), query(0), stuck(B))
    assert run(planner, group((C, A)), query(0)) == [Deny(cluster=C), demand(A)]
    run(planner, ended(A), released(A), SpaceFreed(cluster=B))
    assert run(planner, group((C,)), query(0)) == [demand(C)]


def test_nothing_is_read_ahead_into_the_bytes_that_stuck_reads_leave_for_demands() -> None:
    planner = planner_of(30)
    run(planner, group((A,), then=(C, D)), query(0))
    assert run(planner, stuck(A), QueryEnded(), ended(C)) == [Deny(cluster=A), prefetch(C)]
    assert run(planner, SpaceFreed(cluster=A)) == [prefetch(D)]


def test_the_check_of_the_books_finds_each_kind_of_lie() -> None:
    def fresh() -> tuple[ReadPlanner, Lying]:
        policy = Lying()
        planner = planner_of(100, policy=policy)
        load(planner, A)
        run(planner, group((A, B, C), then=(D,)))
        run(planner, query(0))
        return planner, policy

    planner, policy = fresh()
    planner.check_integrity()
    policy.lie = frozenset({B})
    with pytest.raises(AssertionError):
        planner.check_integrity()
    fives = dict.fromkeys((B, C, D, E, F), "demand")
    threes = dict.fromkeys((B, C, D), "prefetch")
    nobody: dict[str, object] = {"_joined": set(), "_waiting": {}, "_pinned": {}, "_unused": set()}
    for name, reading, used_bytes in (("demand", fives, 60), ("prefetch", threes, 40)):
        planner, _ = fresh()
        for field, value in {**nobody, "_reading": reading, "_used_bytes": used_bytes}.items():
            setattr(planner, field, value)
        with pytest.raises(AssertionError, match=name):
            planner.check_integrity()
    breakages: list[tuple[str, object]] = [
        ("_used_bytes", 29),
        ("_resident", {A, B}),
        ("_waiting", {A: None}),
        ("_waiting", {B: None}),
        ("_waiting", {E: None}),
        ("_joined", {E}),
        ("_joined", {A}),
        ("_leased", {B}),
        ("_pinned", {E: 1}),
        ("_unused", {A}),
        ("_wanted", {A: 1, B: 1}),
        ("_wanted", {A: 1, B: 1, C: 1, D: 0}),
    ]
    for name, value in breakages:
        planner, _ = fresh()
        setattr(planner, name, value)
        with pytest.raises(AssertionError):
            planner.check_integrity()
