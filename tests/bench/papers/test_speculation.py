"""Policies of speculation as the papers print them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from bench.data.evaluation import find_data
from bench.papers.aquapipe.prefetching import AquaPipe
from bench.papers.aquapipe.searches import PASSAGES, searches
from bench.papers.aquapipe.speculation import PolicyRow, promises_of
from bench.papers.hedrarag.speculative_generation import HedraRag
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.simulator.warm_ups import ScoredDraft, WarmUpFigures, WarmUpLoad
from generator.plan.speculation.protocol import (
    CancelWarmUp,
    EngineLoad,
    QueryAnswered,
    WarmUpEnded,
)
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
    assert policy.step(WarmUpEnded(query="q", is_done=True, at_us=0), IDLE) == ()
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
    assert policy.step(WarmUpEnded(query="q", is_done=True, at_us=0), IDLE) == ()
    assert policy.step(draft("axcd", 4), IDLE) == (start("axc"),)


def test_aquapipe_prefetches_no_sooner_than_equation_1_says() -> None:
    """After cluster 3 the pool is full: the next prefetching is floor(4 + 1 - 3) = 2 later."""
    policy = AquaPipe()
    told(policy, ["abcd", "abcd", "abcd", "abxd"])
    assert policy.step(WarmUpEnded(query="q", is_done=True, at_us=0), IDLE) == ()
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


def kept(*, in_vain: float = 0.2, warm_ups: float = 1.0, **fields: Any) -> list[bool]:
    """The promises of one row, of searches of a second by `likely` if nothing is said.

    In order: saved and in vain for 0.5 s, saved and in vain for 1 s, no warm-up at 6 ms.
    """
    figures = WarmUpFigures(saved=0.5, in_vain=in_vain, ttft_ms=1, warm_ups_a_question=warm_ups)
    load = WarmUpLoad(search_us=fields.pop("search_us", 1_000_000), clients=1)
    given = {"nlist": 100, "policy": "likely", "figures": figures, "of_oracle": 0.9}
    return list(promises_of([PolicyRow(load=load, **given | fields)]).values())


def test_each_promise_is_broken_by_the_row_that_is_promised() -> None:
    assert kept() == [True] * 5
    assert kept(of_oracle=0.89) == [True, True, False, True, True]
    assert kept(in_vain=0.26) == [True, True, True, False, True]
    assert kept(search_us=500_000, of_oracle=0.7) == [True] * 5
    assert kept(search_us=500_000, of_oracle=0.69, in_vain=0.26) == [False, False, True, True, True]
    assert kept(policy="ragcache", of_oracle=0.1, in_vain=0.9) == [True] * 5
    assert kept(policy="auto", search_us=6_000) == [True, True, True, True, False]
    assert kept(policy="auto", search_us=6_000, warm_ups=0.0) == [True] * 5


@pytest.mark.data
def test_a_search_ends_with_the_best_of_all_probed_rows() -> None:
    data = find_data(None)
    (found,) = searches(data, source="nq", questions=1, nlist=4, seed=0)
    assert [len(each.passages) for each in found] == [PASSAGES] * len(found)
    assert found[-1].at == 1
    best = [max(each.scores) for each in found]
    assert best == sorted(best), "later clusters never make it worse"
