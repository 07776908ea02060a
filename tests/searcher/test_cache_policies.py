"""One suite over every eviction policy, then what each of them ranks by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.record import ClusterId
from searcher.cache.edgerag import EdgeRag
from searcher.cache.lru import Lru
from searcher.cache.policy import CachePolicy

LATENCY_US = {ClusterId(c): 10 + c for c in range(6)}
POLICIES: dict[str, Callable[[], CachePolicy]] = {"lru": Lru, "edgerag": lambda: EdgeRag(LATENCY_US)}
NOBODY: frozenset[ClusterId] = frozenset()

A, B, C, D = (ClusterId(c) for c in range(4))

# (operation, cluster): what may happen to a cache of six clusters
OPERATIONS = st.lists(st.tuples(st.sampled_from(["touch", "insert", "remove"]), st.integers(0, 5)), max_size=60)


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> CachePolicy:
    return POLICIES[request.param]()


def fill(policy: CachePolicy, *clusters: ClusterId) -> None:
    for cluster in clusters:
        policy.touch(cluster)
        policy.insert(cluster)


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


def test_a_removed_cluster_is_gone_and_may_come_back(policy: CachePolicy) -> None:
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
@given(operations=OPERATIONS, protected=st.frozensets(st.integers(0, 5)))
def test_the_victim_is_always_resident_and_unprotected(
    name: str, operations: list[tuple[str, int]], protected: frozenset[int]
) -> None:
    policy = POLICIES[name]()
    resident: set[ClusterId] = set()
    for operation, number in operations:
        cluster = ClusterId(number)
        if operation == "touch":
            policy.touch(cluster)
        elif (operation == "insert") != (cluster in resident):
            getattr(policy, operation)(cluster)
            resident ^= {cluster}
        assert policy.residents() == resident
        spared = frozenset(map(ClusterId, protected))
        victim = policy.victim(spared)
        assert (victim is None) == (not resident - spared)
        assert victim is None or victim in resident - spared


@given(operations=OPERATIONS)
def test_lru_evicts_what_was_used_longest_ago_like_the_dumb_version(operations: list[tuple[str, int]]) -> None:
    policy = Lru()
    used_at: dict[ClusterId, int] = {}
    resident: set[ClusterId] = set()
    for now, (operation, number) in enumerate(operations):
        cluster = ClusterId(number)
        if operation == "touch":
            policy.touch(cluster)
            used_at[cluster] = now
        elif (operation == "insert") != (cluster in resident):
            getattr(policy, operation)(cluster)
            resident ^= {cluster}
            used_at[cluster] = now
        assert policy.victim(NOBODY) == min(resident, key=lambda c: used_at[c], default=None)


def test_lru_counts_the_insertion_of_a_prefetched_cluster_as_a_use() -> None:
    policy = Lru()
    fill(policy, A, B)
    policy.insert(C)  # nobody asked for it
    assert policy.victim(NOBODY) == A
    policy.touch(A)
    assert policy.victim(NOBODY) == B


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


def test_edgerag_values_what_nobody_asked_for_at_nothing_and_breaks_ties_by_the_lower_id() -> None:
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
