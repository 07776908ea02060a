"""The read planner without a prefetch, with the prefetch as CaGR-RAG describes it, and what
policies hear of windows.
"""

from __future__ import annotations

from bench.baselines.read_steps import Evict, GroupEnded, QueryEnded
from tests.bench.baselines.read_plans import (
    A,
    B,
    C,
    D,
    E,
    demand,
    ended,
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


def test_with_prefetch_none_nothing_is_read_ahead() -> None:
    planner = planner_of(100, mode="none")
    assert run(
        planner, group((A,), then=(B,)), query(0), ended(A), released(A), QueryEnded(), GroupEnded()
    ) == [
        demand(A),
        ssd(A),
    ]


def test_after_the_last_search_of_a_group_the_next_groups_first_query_is_prefetched() -> None:
    """CaGR-RAG, Alg. 1, lines 35-37."""
    planner = planner_of(100, mode="after_group", prefetch=2)
    events = (
        group((A,), (B,), then=(C, A, D, E)),
        query(0),
        ended(A),
        released(A),
        QueryEnded(),
        query(1),
        ended(B),
    )
    assert run(planner, *events) == [demand(A), ssd(A), demand(B), ssd(B)]
    assert run(planner, released(B), QueryEnded()) == []
    assert run(planner, GroupEnded()) == [prefetch(C), prefetch(D)]
    assert run(planner, ended(C)) == [prefetch(E)]
    assert planner.pinned_bytes == 0


def test_to_the_letter_a_prefetch_evicts_by_policy_what_the_next_group_wants_too() -> None:
    """Nothing in Alg. 1 protects what is in the cache: reading D evicts A, the oldest, which the
    next query wants.
    """
    planner = planner_of(20, mode="after_group")
    load(planner, A, B)
    run(planner, group((B,), then=(A, D)), query(0), released(B), QueryEnded())
    assert run(planner, GroupEnded()) == [Evict(cluster=A), prefetch(D)]
    assert run(planner, ended(D), group((A, D)), query(0)) == [
        used(D),
        ram(D),
        Evict(cluster=B),
        demand(A),
    ]


def test_to_letter_what_was_prefetched_and_evicted_unused_is_wasted_and_read_once_a_group() -> None:
    planner = planner_of(10, mode="after_group")
    run(planner, group((A,), then=(B, C)), query(0), ended(A), released(A), QueryEnded())
    assert run(planner, GroupEnded()) == [Evict(cluster=A), prefetch(B)]
    assert run(planner, ended(B)) == [wasted(B), Evict(cluster=B), prefetch(C)]
    assert run(planner, ended(C), group((B, C))) == []


def test_to_letter_the_next_query_joins_what_is_being_prefetched_and_takes_over_the_rest() -> None:
    planner = planner_of(100, mode="after_group", prefetch=1)
    run(planner, group((A,), then=(B, C)), query(0), ended(A), released(A), QueryEnded())
    assert run(planner, GroupEnded()) == [prefetch(B)]
    assert run(planner, group((B, C)), query(0)) == [late(B), demand(C)]
    assert run(planner, ended(B)) == [ssd(B)]
