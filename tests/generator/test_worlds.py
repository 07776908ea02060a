"""What the dispatcher makes of refusals, in scripted worlds: no good prompt fails, none waits for a
bad one, and bad ones end.
"""

from __future__ import annotations

import pytest

from tests.generator.world import (
    KINDS,
    Figures,
    Rule,
    S,
    World,
    down_for,
    healthy,
    refuses_bad,
    refuses_half,
    refuses_prompts,
    token_limit,
)


@pytest.fixture(autouse=True)
def quick_pauses() -> None:
    """Pauses are as long as they are; time is not."""


SLOTS = pytest.mark.parametrize("slots", [8, 64])
SOME = ["429", "403", "504", "500"]
LATER_S = 3_600


def world(
    *rules: Rule, slots: int, bad: int = 0, good: int = 0, good_at_s: float = 5, rate: float = 0
) -> Figures:
    """Runs the bad ones from second 0 on; the good ones come together, or so many a second."""
    late = [(int((good_at_s + (n / rate if rate else 0)) * S), False, None) for n in range(good)]
    early = [(0, True, None)] * bad
    return World(rules=rules, prompts=[*early, *late], slots=slots).run()


@SLOTS
@pytest.mark.parametrize("kind", KINDS)
def test_good_prompts_are_answered_with_one_that_is_always_refused(kind: str, slots: int) -> None:
    seen = world(refuses_bad(kind), slots=slots, bad=1, good=20)
    assert (seen.answered, seen.failed, seen.bad_ended) == (20, 0, 1)
    assert seen.good_begin_s is not None and seen.good_begin_s < 1
    assert seen.bad_end_s < (LATER_S + 120 if KINDS[kind] == "later" else 300)


@SLOTS
@pytest.mark.parametrize("kind", SOME)
def test_good_prompts_begin_soon_behind_many_that_are_always_refused(kind: str, slots: int) -> None:
    seen = world(refuses_bad(kind), slots=slots, bad=24, good=20, good_at_s=0.001)
    assert (seen.answered, seen.failed, seen.bad_ended) == (20, 0, 24)
    assert seen.good_begin_s is not None and seen.good_begin_s < 15


@SLOTS
@pytest.mark.parametrize("kind", SOME)
def test_prompts_that_are_always_refused_end_though_there_are_no_others(
    kind: str, slots: int
) -> None:
    seen = world(refuses_bad(kind), slots=slots, bad=5)
    assert seen.bad_ended == 5
    assert seen.bad_end_s < (LATER_S + 120 if KINDS[kind] == "later" else 900)


@SLOTS
@pytest.mark.parametrize("kind", ["unreachable", "502", "500"])
@pytest.mark.parametrize("seconds", [60, 600])
def test_no_prompt_fails_by_an_outage(seconds: int, kind: str, slots: int) -> None:
    seen = world(down_for(seconds, kind), slots=slots, good=400, good_at_s=0, rate=20)
    assert (seen.answered, seen.failed) == (400, 0)
    assert seen.last_answer_s < 5 + seconds + 10 + 400 / slots + 60


@SLOTS
@pytest.mark.parametrize("kind", ["503", "500", "502"])
def test_no_prompt_fails_where_half_of_all_requests_are_refused(kind: str, slots: int) -> None:
    seen = world(refuses_half(kind, seed=7), slots=slots, good=400)
    assert (seen.answered, seen.failed) == (400, 0)


@SLOTS
@pytest.mark.parametrize("kind", SOME)
def test_few_prompts_fail_by_a_server_that_passes_all_but_prompts(kind: str, slots: int) -> None:
    seen = world(healthy, refuses_prompts(kind), slots=slots, good=400)
    assert seen.answered + seen.failed == 400
    assert seen.failed <= 5


@SLOTS
@pytest.mark.parametrize("says_when", [True, False])
@pytest.mark.parametrize(("window_s", "good"), [(1, 200), (60, 600)])
@pytest.mark.parametrize("load", [1.5, 3])
def test_no_prompt_fails_by_a_limit_of_tokens_a_minute(
    load: float, window_s: int, good: int, says_when: bool, slots: int
) -> None:
    limit = token_limit(a_minute=240_000, window_s=window_s, says_when=says_when)
    seen = world(limit, slots=slots, good=good, rate=4 * load)
    assert (seen.answered, seen.failed) == (good, 0)


@SLOTS
@pytest.mark.parametrize("kind", ["429", "504"])
def test_a_prompt_expires_on_time_when_nothing_else_happens(kind: str, slots: int) -> None:
    """`World` asserts the time."""
    for deadline_s in (1.5, 9, 77):
        prompts = [(0, True, int(deadline_s * S))]
        assert World(rules=[refuses_bad(kind)], prompts=prompts, slots=slots).run().expired == 1
