"""One suite over every eviction policy: the contract, then each against its dumb version, then what
each ranks by.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baselines.eviction.edgerag import EdgeRag
from bench.baselines.eviction.gdsf import Gdsf
from bench.baselines.eviction.lfu import Lfu
from bench.baselines.eviction.lru import Lru
from bench.baselines.eviction.policies import POLICY_NAMES, PolicyName, make_policy
from bench.baselines.eviction.tiny_lfu import TinyLfu
from searcher.plan.eviction.farthest_next_use import FarthestNextUse
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId
from tests.bench.baselines.dumb_policies import DumbGdsf, DumbTinyLfu, dumb_edgerag, dumb_lfu
from tests.searcher.dumb_policies import (
    CLUSTERS,
    NOBODY,
    OPERATIONS,
    PROTECTED,
    A,
    B,
    C,
    DumbLru,
    Operation,
    do,
    dumb_farthest_next_use,
    fill,
)

LATENCY_US = {c: 10 + c for c in CLUSTERS}
SIZE_BYTES = {c: 1 << (c % 4) for c in CLUSTERS}  # powers of two: cost per byte is exact
TINY_SIZE_BYTES = {c: 2 * s for c, s in SIZE_BYTES.items()}

# Each policy as it is used, and the dumb version that it must agree with.
POLICIES: dict[str, tuple[Callable[[], CachePolicy], Callable[[], CachePolicy]]] = {
    "lru": (Lru, DumbLru),
    "lfu": (Lfu, dumb_lfu),
    "edgerag": (lambda: EdgeRag(LATENCY_US), lambda: dumb_edgerag(LATENCY_US)),
    "gdsf": (
        lambda: Gdsf(LATENCY_US, SIZE_BYTES),
        lambda: DumbGdsf({c: LATENCY_US[c] / SIZE_BYTES[c] for c in CLUSTERS}),
    ),
    "farthest_next_use": (lambda: FarthestNextUse(1), lambda: dumb_farthest_next_use(1)),
    "farthest_next_use, never fading": (
        lambda: FarthestNextUse(0),
        lambda: dumb_farthest_next_use(0),
    ),
    "tiny_lfu": (
        lambda: TinyLfu(TINY_SIZE_BYTES, 1000),
        lambda: DumbTinyLfu(TINY_SIZE_BYTES, 10, 792, 80),
    ),
    "tiny_lfu, small": (
        lambda: TinyLfu(TINY_SIZE_BYTES, 20),
        lambda: DumbTinyLfu(TINY_SIZE_BYTES, 0, 16, 80),
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


def test_lru_counts_the_insertion_of_a_prefetched_cluster_as_a_use() -> None:
    policy = Lru()
    fill(policy, A, B)
    policy.insert(C)  # no query wants it
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


def test_lfu_keeps_what_is_popular_and_of_equals_what_was_used_last() -> None:
    policy = Lfu()
    fill(policy, A, B, C)
    policy.touch(A)
    policy.touch(C)
    policy.touch(B)  # two uses each; A's last lies furthest back
    assert policy.victim(NOBODY) == A
    policy.touch(A)
    assert policy.victim(NOBODY) == C


def test_gdsf_prefers_small_clusters_of_equal_cost_and_ages_what_stays() -> None:
    """Cherkasova 1998: Pr(f) = L + Fr(f) × C(f) / S(f), and L is the priority of what was evicted
    last.
    """
    policy = Gdsf({A: 8, B: 8, C: 8}, {A: 1, B: 4, C: 8})
    fill(policy, A, B, C)  # 8, 2, 1
    assert policy.victim(NOBODY) == C
    policy.remove(C)  # L = 1
    policy.touch(B)  # 1 + 2 × 2 = 5
    policy.insert(C)  # 1 + 1 = 2
    policy.remove(C)  # L = 2
    policy.remove(B)  # L = 5
    fill(policy, B, C)  # 7, 6
    assert policy.victim(NOBODY) == C
    assert policy.victim(frozenset({C})) == B


def test_tiny_lfu_admits_a_newcomer_only_if_it_is_asked_for_more_often() -> None:
    """TinyLFU section 3.1: accept an item only if its frequency exceeds that of the cache's
    victim.
    """
    policy = TinyLfu(dict.fromkeys((A, B, C), 50), 100)
    fill(policy, A)
    policy.touch(A)  # two uses
    fill(policy, B)
    assert policy.victim(NOBODY) == B
    policy.remove(B)
    for _ in range(3):
        policy.touch(C)
    policy.insert(C)
    assert policy.victim(NOBODY) == A


def test_tiny_lfu_forgets_old_favourites_by_halving() -> None:
    """TinyLFU section 3.3: after every sample all counters are halved."""
    for late_uses, loser in ((0, B), (10, A)):
        policy = TinyLfu(dict.fromkeys((A, B), 50), 100)  # a sample is 20 requests
        for _ in range(19):
            policy.touch(A)
        policy.touch(B)  # the twentieth: 9 and 0 are left
        for _ in range(late_uses):
            policy.touch(B)  # the tenth is again a twentieth: 4 and 5
        policy.insert(A)
        policy.insert(B)
        assert policy.victim(NOBODY) == loser


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("latency_us", [{}, LATENCY_US])
def test_every_name_makes_a_policy_that_has_passed_this_suite(
    name: PolicyName, latency_us: dict[SliceId, int]
) -> None:
    policy = make_policy(name, size_bytes=SIZE_BYTES, budget_bytes=10, read_latency_us=latency_us)
    assert type(policy) in {type(make()) for make, _ in POLICIES.values()}
    fill(policy, A, B, C)
    assert policy.victim(frozenset({A, B})) == C
    policy.check_integrity()
