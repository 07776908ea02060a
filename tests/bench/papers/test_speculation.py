"""Policies of speculation as the papers print them."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from bench.data.evaluation import find_data
from bench.papers.aquapipe.prefetching import AquaPipe
from bench.papers.aquapipe.speculation import PASSAGES, searches
from bench.papers.hedrarag.speculative_generation import HedraRag
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.simulator.warm_ups import ScoredDraft
from generator.plan.warm_ups import CancelWarmUp, EngineLoad, QueryAnswered, WarmUpEnded
from tests.generator.test_speculation import IDLE, draft, start, told


def test_ragcache_begins_again_when_the_draft_changes() -> None:
    """RAGCache, figure 11: the passages of four stages."""
    assert told(RagCache(), ["ac", "ab", "ab", "ab"]) == [
        start("ac"),
        CancelWarmUp(query="q"),
        start("ab"),
    ]


def test_ragcache_begins_nothing_with_a_full_batch() -> None:
    policy = RagCache(max_prefill_bs=2)
    busy = EngineLoad(in_flight=2, waiting=0, limit=8)
    assert policy.step(draft("ab", 1), busy) == ()
    assert policy.step(draft("ab", 2), IDLE) == (), "only a change begins one (Algorithm 2)"
    assert policy.step(draft("ac", 3), IDLE) == (start("ac"),)


def test_aquapipe_prefetches_as_results_become_stable() -> None:
    """Equations 1 to 3 by hand, top-k 4, and element 5 comes before element 4 (figure 11).

    Cluster 1: all is new, Stability 0, Balancer 0, MaxNum 0. Cluster 2: Stability 4, Balancer 2,
    MaxNum 3. The next prefetching is floor(3/4 * 3 + 1 - 2) = 1 cluster later. Cluster 3: the last
    element moved, Stability 3, none of the pool moved, Balancer 2.5, MaxNum floor(2.5/2) = 1, but
    the element is not where it was. Cluster 4: Stability 4, Balancer 3.25, MaxNum 2.
    """
    policy = AquaPipe()
    actions = told(policy, ["abcd", "abcd", "abce"])
    assert actions == [start("abc")]
    assert policy.step(WarmUpEnded(query="q", is_done=True), IDLE) == ()
    assert policy.step(draft("abce", 4), IDLE) == (start("abce"),)


def test_aquapipe_removes_what_moved() -> None:
    assert told(AquaPipe(), ["abcd", "abcd", "abxc"]) == [
        start("abc"),
        CancelWarmUp(query="q"),
        start("ab"),
    ]


def test_aquapipe_is_careful_after_the_pool_was_wrong() -> None:
    """Equation 3: of the pool of three one element moved, so Balancer is (3 - 4 + 2) / 2 = 0.5.

    The pool is then one element, and MaxNum of the next cluster floor((4 - 1 + 2.25) / 2) = 2.
    """
    policy = AquaPipe()
    told(policy, ["abcd", "abcd", "axcd"])
    assert policy.step(WarmUpEnded(query="q", is_done=True), IDLE) == ()
    assert policy.step(draft("axcd", 4), IDLE) == (start("axc"),)


def test_aquapipe_prefetches_no_sooner_than_equation_1_says() -> None:
    """After cluster 3 the pool is full: the next prefetching is floor(4 + 1 - 3) = 2 later."""
    policy = AquaPipe()
    told(policy, ["abcd", "abcd", "abcd", "abxd"])
    assert policy.step(WarmUpEnded(query="q", is_done=True), IDLE) == ()
    assert policy.step(draft("abxd", 5), IDLE) == (), "the pool was compared with cluster 3"
    assert policy.step(draft("abxd", 6), IDLE) == (start("abxd"),)


def test_hedrarag_fills_the_server_with_the_closest_first() -> None:
    policy = HedraRag(threshold=0.5)
    full = EngineLoad(in_flight=4, waiting=0, limit=8)
    for name, score in (("far", 0.3), ("near", 0.9), ("middle", 0.5)):
        one = ScoredDraft(**asdict(draft("ab", 1, query=name)), scores=(score, score))
        assert policy.step(one, full) == (), "the threshold is reached"
    two = EngineLoad(in_flight=2, waiting=0, limit=8)
    answered = QueryAnswered(query="another")
    assert policy.step(answered, two) == (start("ab", "near"), start("ab", "middle"))


@pytest.mark.data
def test_a_search_ends_with_the_best_of_all_probed_rows() -> None:
    data = find_data(None)
    (found,) = searches(data, questions=1, nlist=4, seed=0)
    assert [len(each.passages) for each in found] == [PASSAGES] * len(found)
    assert found[-1].at == 1
    best = [max(each.scores) for each in found]
    assert best == sorted(best), "later clusters never make it worse"
