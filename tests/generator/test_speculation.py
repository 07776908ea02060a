"""Policies of speculation: what each warms, and what none may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.warm_ups import (
    PRIOR_SEARCHES,
    SEARCH_MIN_US,
    SHARE_MIN,
    Auto,
    CancelWarmUp,
    DraftFound,
    EngineLoad,
    Likely,
    NoSpeculation,
    QueryAnswered,
    SearchEnded,
    SpeculationAction,
    SpeculationPolicy,
    StartWarmUp,
    WarmUpEnded,
)

IDLE = EngineLoad(in_flight=0, waiting=0, limit=8)
FULL = EngineLoad(in_flight=8, waiting=0, limit=8)

POLICIES: dict[str, Callable[[], SpeculationPolicy]] = {
    "none": NoSpeculation,
    "likely": Likely,
    "auto": lambda: Auto(Likely()),
}


def draft(found: str, done: int, *, query: str = "q", total: int = 10) -> DraftFound:
    """A draft with passages of these letters."""
    return DraftFound(
        query=query,
        passages=tuple(found),
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
def test_while_nothing_is_counted_likely_warms_what_two_clusters_left_in_its_place(
    founds: list[str], expected: list[SpeculationAction]
) -> None:
    assert told(Likely(), founds) == expected


def test_likely_goes_on_when_a_warm_up_has_ended() -> None:
    policy = Likely()
    assert told(policy, ["a", "ab", "abc", "abc"]) == [start("a")]
    ended = WarmUpEnded(query="q", is_done=True)
    assert policy.step(ended, IDLE) == (start("ab"),)
    assert policy.step(ended, IDLE) == ()
    assert policy.step(draft("abc", 5), FULL) == ()
    assert policy.step(draft("abc", 6), IDLE) == (start("abc"),)


def test_a_warm_up_that_failed_is_begun_again_with_the_next_draft() -> None:
    policy = Likely()
    assert told(policy, ["abc", "abc", "abc"]) == [start("abc")]
    assert policy.step(WarmUpEnded(query="q", is_done=False), IDLE) == ()
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
            actions = policy.step(WarmUpEnded(query=query, is_done=kind == "warmed"), load)
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


def searched(auto: Auto, count: int, *, took_us: int, waits_us: tuple[int, int]) -> list[bool]:
    """Searches with three equal drafts each; says which were warmed. `waits_us`: warm, cold."""
    warmed = []
    for number in range(count):
        actions: list[SpeculationAction] = []
        for done in (1, 2, 3):
            at_us = took_us * (done - 1) // 3
            one = replace(draft("abc", done, query=str(number), total=4), at_us=at_us)
            actions += auto.step(one, IDLE)
        ended = SearchEnded(query=str(number), passages=tuple("abc"), at_us=took_us)
        auto.step(ended, IDLE)
        auto.step(QueryAnswered(query=str(number), wait_us=waits_us[not actions]), IDLE)
        warmed.append(bool(actions))
    return warmed


def test_auto_warms_nothing_for_searches_of_six_milliseconds() -> None:
    assert not any(searched(Auto(Likely()), 300, took_us=6_000, waits_us=(1, 900)))


def test_auto_warms_while_that_pays() -> None:
    auto, long_us = Auto(Likely()), 2 * SEARCH_MIN_US
    warmed = searched(auto, 400, took_us=long_us, waits_us=(100, 900))
    assert not warmed[0], "how long a search takes is not known yet"
    assert sum(warmed[200:]) >= 0.85 * 200
    warmed = searched(auto, 600, took_us=long_us, waits_us=(990, 1_000))
    assert sum(warmed[400:]) <= 0.15 * 200, "less than two percent is no gain"
    warmed = searched(auto, 2_000, took_us=long_us, waits_us=(100, 900))
    assert sum(warmed[-200:]) >= 0.85 * 200, "the policy notices when warm-ups pay again"


@pytest.mark.parametrize(
    ("in_flight", "waiting", "limit", "is_warmed"),
    [(0, 0, 8, True), (1, 0, 8, False), (0, 1, 8, False), (7, 0, 8, False), (0, 0, 0, False)],
)
def test_auto_warms_on_an_idle_server_only(
    in_flight: int, waiting: int, limit: int, is_warmed: bool
) -> None:
    auto = Auto(Likely())
    searched(auto, 1, took_us=2 * SEARCH_MIN_US, waits_us=(100, 900))
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


def test_likely_no_longer_warms_what_stayed_but_was_not_final() -> None:
    policy, warmed = Likely(), []
    for seen in range(3):
        name = str(seen)
        for done in (1, 2, 3):
            warmed += policy.step(draft("a", done, query=name), IDLE)
        policy.step(SearchEnded(query=name, passages=("b",), at_us=9), IDLE)
        policy.step(QueryAnswered(query=name), IDLE)
    assert warmed == [start("a", "0")]
