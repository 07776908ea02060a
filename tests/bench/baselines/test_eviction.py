"""One suite over every eviction policy: the contract, then each against its dumb version, then what
each ranks by.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baselines.edgerag import EdgeRag
from searcher.plan.eviction.farthest_next_use import FarthestNextUse
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId
from tests.searcher.dumb_policies import (
    CLUSTERS,
    NOBODY,
    OPERATIONS,
    PROTECTED,
    A,
    B,
    C,
    Dumb,
    Operation,
    do,
    dumb_farthest_next_use,
    fill,
)

LATENCY_US = {c: 10 + c for c in CLUSTERS}


def dumb_edgerag() -> Dumb:
    return Dumb(lambda history, cluster: (LATENCY_US[cluster] * history.uses(cluster),))


# Each policy as it is used, and the dumb version that it must agree with.
POLICIES: dict[str, tuple[Callable[[], CachePolicy], Callable[[], CachePolicy]]] = {
    "edgerag": (lambda: EdgeRag(LATENCY_US), dumb_edgerag),
    "farthest_next_use": (lambda: FarthestNextUse(1), lambda: dumb_farthest_next_use(1)),
    "farthest_next_use, never fading": (
        lambda: FarthestNextUse(0),
        lambda: dumb_farthest_next_use(0),
    ),
}


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> CachePolicy:
    return POLICIES[request.param][0]()


def test_an_empty_cache_has_no_victim(policy: CachePolicy) -> None:
    assert policy.victim(NOBODY) is None
    policy.touch(A)
    assert policy.victim(NOBODY) is None
    assert policy.residents() == frozenset()


def test_a_protected_cluster_is_never_the_victim(policy: CachePolicy) -> None:
    fill(policy, A, B, C)
    assert policy.victim(frozenset({A, B})) == C
    assert policy.victim(frozenset({A, C})) == B
    assert policy.victim(frozenset({A, B, C})) is None


def test_asking_for_a_victim_changes_nothing(policy: CachePolicy) -> None:
    fill(policy, A, B, C)
    assert policy.victim(NOBODY) == policy.victim(NOBODY)
    assert policy.residents() == {A, B, C}


def test_a_removed_cluster_may_be_inserted_again(policy: CachePolicy) -> None:
    fill(policy, A, B)
    policy.remove(A)
    assert policy.residents() == {B}
    assert policy.victim(NOBODY) == B
    policy.insert(A)
    assert policy.residents() == {A, B}


def test_inserting_twice_and_removing_what_is_not_there_are_faults(policy: CachePolicy) -> None:
    fill(policy, A)
    with pytest.raises(AssertionError):
        policy.insert(A)
    with pytest.raises(KeyError):
        policy.remove(B)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=40)
@given(operations=OPERATIONS, protected=PROTECTED)
def test_the_victim_is_resident_and_unprotected_and_there_whenever_one_can_be(
    name: str, operations: list[Operation], protected: frozenset[SliceId]
) -> None:
    policy = POLICIES[name][0]()
    resident: set[SliceId] = set()
    for operation in operations:
        do(policy, operation)
        what, cluster, _ = operation
        resident = (
            resident | {cluster}
            if what == "insert"
            else resident - {cluster}
            if what == "remove"
            else resident
        )
        assert policy.residents() == resident
        victim = policy.victim(protected)
        assert (victim is None) == (not resident - protected)
        assert victim is None or victim in resident - protected
    policy.check_integrity()


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(operations=OPERATIONS, protected=PROTECTED)
def test_it_evicts_what_the_dumb_version_evicts(
    name: str, operations: list[Operation], protected: frozenset[SliceId]
) -> None:
    policy, dumb = (make() for make in POLICIES[name])
    for operation in operations:
        what, _, horizon = operation
        if (
            what == "remove"
        ):  # most evictions are of the victim, so that what follows from one is followed through
            victim = dumb.victim(frozenset(horizon))
            operation = (what, victim if victim is not None else operation[1], horizon)
        do(policy, operation)
        do(dumb, operation)
        assert policy.victim(NOBODY) == dumb.victim(NOBODY)
        assert policy.victim(protected) == dumb.victim(protected)
    policy.check_integrity()


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=40)
@given(operations=OPERATIONS, asked=st.lists(PROTECTED, max_size=3))
def test_asking_more_often_changes_no_later_answer(
    name: str, operations: list[Operation], asked: list[frozenset[SliceId]]
) -> None:
    policy, curious = POLICIES[name][0](), POLICIES[name][0]()
    for operation in operations:
        do(policy, operation)
        do(curious, operation)
        for protected in asked:
            curious.victim(protected)
        assert policy.victim(NOBODY) == curious.victim(NOBODY)


def test_a_horizon_of_clusters_that_do_not_exist_harms_nothing(policy: CachePolicy) -> None:
    fill(policy, A, B)
    policy.set_horizon({SliceId(999): 1, A: 0, B: 10**9})
    assert policy.victim(frozenset({A})) == B
    policy.set_horizon({})
    assert policy.residents() == {A, B}
    policy.check_integrity()


def test_the_horizon_is_not_kept(policy: CachePolicy) -> None:
    fill(policy, A, B)
    horizon = {A: 1, B: 2}
    policy.set_horizon(horizon)
    before = policy.victim(NOBODY)
    horizon.update({A: 9, B: 1})
    assert policy.victim(NOBODY) == before
    policy.check_integrity()


def test_edgerag_keeps_what_is_dear_to_read_and_often_asked_for() -> None:
    """CaGR-RAG 4.1: "prioritizes cluster with high generation latency and accessed count"."""
    policy = EdgeRag({A: 100, B: 10, C: 30})
    fill(policy, A, B, C)  # values 100, 10, 30
    assert policy.victim(NOBODY) == B
    for _ in range(3):
        policy.touch(B)  # 40
    assert policy.victim(NOBODY) == C
    policy.touch(C)  # 60
    assert policy.victim(NOBODY) == B
    assert policy.victim(frozenset({B, C})) == A


def test_edgerag_gives_unused_clusters_value_zero_and_breaks_ties_by_the_lower_id() -> None:
    policy = EdgeRag({A: 5, B: 5, C: 5})
    fill(policy, B, A)
    assert policy.victim(NOBODY) == A
    policy.insert(C)
    assert policy.victim(NOBODY) == C


def test_edgerag_remembers_counts_over_an_eviction() -> None:
    policy = EdgeRag({A: 10, B: 10})
    fill(policy, A)
    policy.touch(A)
    policy.remove(A)
    fill(policy, A, B)  # A was asked for three times, B once
    assert policy.victim(NOBODY) == B
    assert policy.victim(frozenset({B})) == A


def test_edgerag_without_a_profile_counts_accesses() -> None:
    policy = EdgeRag({})
    fill(policy, A, B)
    policy.touch(A)
    assert policy.victim(NOBODY) == B
