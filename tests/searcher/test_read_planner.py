"""The read planner, query by query: what is read, what is evicted, who waits."""

from __future__ import annotations

from collections.abc import Set

import pytest

from schemas.record import ClusterId
from searcher.plan.eviction.lru import Lru
from searcher.plan.reads import ReadPlanner
from searcher.plan.steps import (
    Deny,
    Evict,
    GroupEnded,
    NextChanged,
    QueryEnded,
    ReadFailed,
    SpaceFreed,
)
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
    load,
    planner_of,
    prefetch,
    query,
    ram,
    released,
    run,
    ssd,
    used,
)


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
    assert run(planner, query(2)) == [
        Evict(cluster=A),
        demand(D),
    ]  # A is not spared for a query that was skipped


def test_a_query_that_names_a_cluster_twice_gets_it_once() -> None:
    planner = planner_of(30)
    run(planner, group((A, B, A)))
    assert run(planner, query(0)) == [demand(A), demand(B)]
    assert run(planner, ended(A), released(A), ended(B), released(B), QueryEnded()) == [
        ssd(A),
        ssd(B),
    ]
    load(planner, C)
    run(planner, group((B,), (D,)), query(0), released(B))
    assert run(planner, query(1)) == [
        Evict(cluster=A),
        demand(D),
    ]  # A is not wanted by books that count it twice


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


def stuck(cluster: ClusterId) -> ReadFailed:
    return ReadFailed(cluster=cluster, is_stuck=True)


# ---- reads that never return


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


def test_query_for_which_stuck_reads_leave_no_room_is_denied_instead_of_waiting_for_ever() -> None:
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


# ---- the books


class Lying(Lru):
    """A policy whose books can be made wrong."""

    lie: frozenset[ClusterId] | None = None

    def residents(self) -> frozenset[ClusterId]:
        return super().residents() if self.lie is None else self.lie

    def victim(self, protected: Set[ClusterId]) -> ClusterId | None:
        return super().victim(protected)


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
