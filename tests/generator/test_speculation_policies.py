"""Policies of speculation: what each warms, and what none may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.speculation.aquapipe import AquaPipe
from generator.plan.speculation.auto import SEARCH_MIN_US, Auto
from generator.plan.speculation.hedrarag import HedraRag
from generator.plan.speculation.likely import PRIOR_SEARCHES, SHARE_MIN, Likely
from generator.plan.speculation.none import NoSpeculation
from generator.plan.speculation.protocol import (
    CancelWarmUp,
    DraftFound,
    EngineLoad,
    QueryAnswered,
    SearchEnded,
    SpeculationAction,
    SpeculationPolicy,
    StartWarmUp,
    WarmUpEnded,
)
from generator.plan.speculation.ragcache import RagCache
from generator.plan.speculation.stable import Stable

IDLE = EngineLoad(in_flight=0, waiting=0, limit=8)
FULL = EngineLoad(in_flight=8, waiting=0, limit=8)

POLICIES: dict[str, Callable[[], SpeculationPolicy]] = {
    "none": NoSpeculation,
    "stable": lambda: Stable(clusters=2),
    "stable by share": Stable,
    "stable at once": lambda: Stable(clusters=0),
    "ragcache": RagCache,
    "aquapipe": AquaPipe,
    "aquapipe, fine": lambda: AquaPipe(chunk_us=0),
    "hedrarag": HedraRag,
    "likely": Likely,
    "auto": lambda: Auto(Stable()),
}


def draft(found: str, done: int, *, query: str = "q", total: int = 10) -> DraftFound:
    """A draft with passages of these letters; the first letters of the alphabet score best."""
    return DraftFound(
        query=query,
        passages=tuple(found),
        scores=tuple(1 - place / 10 for place in range(len(found))),
        clusters_done=done,
        clusters_total=total,
        at_us=done * 100_000,
    )


def start(found: str, query: str = "q") -> StartWarmUp:
    return StartWarmUp(query=query, passages=tuple(found))


def told(
    policy: SpeculationPolicy, founds: Sequence[str], load: EngineLoad = IDLE
) -> list[SpeculationAction]:
    """Tells a policy drafts, each of one more cluster, and returns what it does."""
    return [
        action
        for done, found in enumerate(founds, 1)
        for action in policy.step(draft(found, done), load)
    ]


@pytest.mark.parametrize(
    ("founds", "expected"),
    [
        (["abc"], []),
        (["abc", "abc"], []),
        (["abc", "abc", "abc"], [start("abc")]),
        (["abc", "abd", "abd"], [start("ab")]),
        (["abc", "abc", "abc", "abx"], [start("abc"), CancelWarmUp(query="q"), start("ab")]),
        (["a", "ab", "abc"], [start("a")]),
    ],
)
def test_stable_warms_what_two_clusters_left_in_its_place(
    founds: list[str], expected: list[SpeculationAction]
) -> None:
    assert told(Stable(clusters=2), founds) == expected


def test_stable_goes_on_when_a_warm_up_has_ended() -> None:
    policy = Stable(clusters=2)
    assert told(policy, ["a", "ab", "abc", "abc"]) == [start("a")]
    ended = WarmUpEnded(query="q", is_done=True, at_us=0)
    assert policy.step(ended, IDLE) == (start("ab"),)
    assert policy.step(ended, IDLE) == ()
    assert policy.step(draft("abc", 5), FULL) == ()
    assert policy.step(draft("abc", 6), IDLE) == (start("abc"),)


def test_a_warm_up_that_failed_is_begun_again_with_the_next_draft() -> None:
    policy = Stable(clusters=2)
    assert told(policy, ["abc", "abc", "abc"]) == [start("abc")]
    assert policy.step(WarmUpEnded(query="q", is_done=False, at_us=0), IDLE) == ()
    assert policy.step(draft("abc", 4), IDLE) == (start("abc"),)


Told = tuple[str, str, str, bool]
events = st.lists(
    st.tuples(
        st.sampled_from(["draft"] * 6 + ["warmed", "failed", "ended", "answered"]),
        st.sampled_from("pq"),
        st.permutations("abcde").map(lambda letters: "".join(letters[:3])),
        st.booleans(),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", POLICIES)
@given(events=events)
def test_what_no_policy_may_do(name: str, events: list[Told]) -> None:
    """One warm-up of a query at a time, of what its last draft begins with, while it is searched.

    Without room none is started; `auto` starts one on an idle server only.
    """
    policy = POLICIES[name]()
    running: dict[str, tuple[str, ...]] = {}
    last: dict[str, tuple[str, ...]] = {}
    done: dict[str, int] = {}
    is_ended: set[str] = set()
    number = {"p": 0, "q": 0}
    for at, (kind, letter, found, is_busy) in enumerate(events):
        load = FULL if is_busy else IDLE
        query = f"{letter}{number[letter]}"
        if kind == "draft" and query not in is_ended:
            done[query] = done.get(query, 0) + 1
            actions = policy.step(draft(found, done[query], query=query, total=40), load)
            last[query] = tuple(found)
        elif kind in ("warmed", "failed") and query in running:
            del running[query]
            actions = policy.step(
                WarmUpEnded(query=query, is_done=kind == "warmed", at_us=at), load
            )
        elif kind == "ended" and query in last and query not in is_ended:
            is_ended.add(query)
            running.pop(query, None)
            actions = policy.step(SearchEnded(query=query, passages=last[query], at_us=at), load)
        elif kind == "answered":
            running.pop(query, None)
            last.pop(query, None)
            number[letter] += 1
            actions = policy.step(QueryAnswered(query=query, wait_us=at), load)
        else:
            continue
        room = 0 if is_busy else 1 if name == "auto" else 8
        for action in actions:
            if isinstance(action, CancelWarmUp):
                del running[action.query]
                room += 1
            else:
                assert action.query not in running
                assert action.query not in is_ended
                assert action.passages
                assert last[action.query][: len(action.passages)] == action.passages
                room -= 1
                assert room >= 0
                running[action.query] = action.passages


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
    policy = AquaPipe(chunk_us=0)
    actions = told(policy, ["abcd", "abcd", "abce"])
    assert actions == [start("abc")]
    assert policy.step(WarmUpEnded(query="q", is_done=True, at_us=0), IDLE) == ()
    assert policy.step(draft("abce", 4), IDLE) == (start("abce"),)


def test_aquapipe_removes_what_moved() -> None:
    assert told(AquaPipe(chunk_us=0), ["abcd", "abcd", "abxc"]) == [
        start("abc"),
        CancelWarmUp(query="q"),
        start("ab"),
    ]


def test_aquapipe_is_careful_after_the_pool_was_wrong() -> None:
    """Equation 3: of the pool of three one element moved, so Balancer is (3 - 4 + 2) / 2 = 0.5.

    The pool is then one element, and MaxNum of the next cluster floor((4 - 1 + 2.25) / 2) = 2.
    """
    policy = AquaPipe(chunk_us=0)
    told(policy, ["abcd", "abcd", "axcd"])
    assert policy.step(WarmUpEnded(query="q", is_done=True, at_us=0), IDLE) == ()
    assert policy.step(draft("axcd", 4), IDLE) == (start("axc"),)


def test_aquapipe_prefetches_no_sooner_than_equation_1_says() -> None:
    """After cluster 3 the pool is full: the next prefetching is floor(4 + 1 - 3) = 2 later."""
    policy = AquaPipe(chunk_us=0)
    told(policy, ["abcd", "abcd", "abcd", "abxd"])
    assert policy.step(WarmUpEnded(query="q", is_done=True, at_us=0), IDLE) == ()
    assert policy.step(draft("abxd", 5), IDLE) == (), "the pool was compared with cluster 3"
    assert policy.step(draft("abxd", 6), IDLE) == (start("abxd"),)


def test_aquapipe_waits_for_more_where_passages_come_fast() -> None:
    """Section 4.4. A cluster takes 100 ms here."""
    founds = ["abcd", "abcd"]
    assert told(AquaPipe(chunk_us=100_000), founds) == [start("abc")]
    assert told(AquaPipe(chunk_us=100_001), founds) == []
    assert told(AquaPipe(chunk_us=100_001), ["abcd", "abcd", "abcd"]) == [start("abcd")]


def test_hedrarag_fills_the_server_with_the_closest_first() -> None:
    policy = HedraRag(threshold=0.5)
    full = EngineLoad(in_flight=4, waiting=0, limit=8)
    for name, score in (("far", 0.3), ("near", 0.9), ("middle", 0.5)):
        one = replace(draft("ab", 1, query=name), scores=(score, score))
        assert policy.step(one, full) == (), "the threshold is reached"
    two = EngineLoad(in_flight=2, waiting=0, limit=8)
    answered = QueryAnswered(query="another")
    assert policy.step(answered, two) == (start("ab", "near"), start("ab", "middle"))


def searched(auto: Auto, name: str, *, took_us: int, waits_us: tuple[int, int]) -> bool:
    """One search with three equal drafts; returns whether it was warmed. `waits_us`: warm, cold."""
    actions: list[SpeculationAction] = []
    for done in (1, 2, 3):
        at_us = took_us * (done - 1) // 3
        one = replace(draft("abc", done, query=name, total=4), at_us=at_us)
        actions += auto.step(one, IDLE)
    auto.step(SearchEnded(query=name, passages=tuple("abc"), at_us=took_us), IDLE)
    auto.step(QueryAnswered(query=name, wait_us=waits_us[not actions]), IDLE)
    return bool(actions)


def test_auto_warms_nothing_for_searches_of_six_milliseconds() -> None:
    auto = Auto(Stable())
    assert not any(
        searched(auto, str(number), took_us=6_000, waits_us=(1, 900)) for number in range(300)
    )


def test_auto_warms_while_that_pays() -> None:
    auto = Auto(Stable())
    long_us = 2 * SEARCH_MIN_US
    warmed = [
        searched(auto, str(number), took_us=long_us, waits_us=(100, 900)) for number in range(400)
    ]
    assert not warmed[0], "how long a search takes is not known yet"
    assert sum(warmed[200:]) >= 0.85 * 200
    warmed = [
        searched(auto, str(number), took_us=long_us, waits_us=(900, 900))
        for number in range(400, 1_000)
    ]
    assert sum(warmed[400:]) <= 0.15 * 200


@pytest.mark.parametrize(
    ("in_flight", "waiting", "limit", "is_warmed"),
    [(0, 0, 8, True), (1, 0, 8, False), (0, 1, 8, False), (7, 0, 8, False), (0, 0, 0, False)],
)
def test_auto_warms_on_an_idle_server_only(
    in_flight: int, waiting: int, limit: int, is_warmed: bool
) -> None:
    auto = Auto(Stable())
    searched(auto, "first", took_us=2 * SEARCH_MIN_US, waits_us=(100, 900))
    load = EngineLoad(in_flight=in_flight, waiting=waiting, limit=limit)
    assert told(auto, ["abc", "abc", "abc"], load) == ([start("abc")] if is_warmed else [])


def test_likely_warms_what_was_final_in_earlier_searches() -> None:
    """Here the first passage of the first draft is always final, and the second one never."""
    policy = Likely()
    for seen in range(9):
        name = str(seen)
        expected = (start("a", name),) if seen >= SHARE_MIN * (seen + PRIOR_SEARCHES) else ()
        assert policy.step(draft("ab", 1, query=name), IDLE) == expected
        policy.step(SearchEnded(query=name, passages=tuple("ac"), at_us=9), IDLE)
        policy.step(QueryAnswered(query=name), IDLE)
    assert expected, "so many searches are enough"


@pytest.mark.parametrize("founds", [["abc"] * 3, ["abc", "abd", "abd", "abd"], ["a", "ab", "abc"]])
def test_likely_decides_as_stable_does_while_nothing_is_counted(founds: list[str]) -> None:
    assert told(Likely(), founds) == told(Stable(), founds) != []


def test_likely_no_longer_warms_what_stayed_but_was_not_final() -> None:
    policy, warmed = Likely(), []
    for seen in range(3):
        name = str(seen)
        for done in (1, 2, 3):
            warmed += policy.step(draft("a", done, query=name), IDLE)
        policy.step(SearchEnded(query=name, passages=("b",), at_us=9), IDLE)
        policy.step(QueryAnswered(query=name), IDLE)
    assert warmed == [start("a", "0")]
