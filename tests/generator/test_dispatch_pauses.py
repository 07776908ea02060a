"""The dispatcher and a server that refuses: pauses, probes, prompts under suspicion."""

from __future__ import annotations

from dataclasses import replace

from generator.plan.dispatch import (
    Accepted,
    Cancel,
    Check,
    CheckPassed,
    Deliver,
    Dispatcher,
    Ended,
    GiveUp,
    Refused,
    Revoked,
    Send,
    Ticked,
)
from tests.generator.dispatching import LIMITS, arrive, opened


def test_a_refusal_pauses_and_puts_the_prompt_back_then_one_probe_opens_again() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2, 3)
    assert dispatcher.step(Refused(id=1), 1_000) == ()
    assert (dispatcher.server, dispatcher.credit(), dispatcher.wake_us()) == ("paused", 0, 1_100)
    assert dispatcher.step(Refused(id=2), 1_000) == ()
    assert dispatcher.step(Ticked(), 1_099) == ()
    assert dispatcher.step(Ticked(), 1_100) == (Send(id=1, attempt=2),)
    assert (dispatcher.server, dispatcher.credit(), dispatcher.running) == ("probing", 0, 1)
    assert dispatcher.step(Ticked(), 1_200) == ()
    assert dispatcher.step(Accepted(id=1), 1_300) == (Send(id=2, attempt=2),)
    assert (dispatcher.server, dispatcher.credit()) == ("open", 2)


def test_a_probe_that_ends_before_its_first_token_is_seen_opens_too() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    dispatcher.step(Refused(id=1), 0)
    dispatcher.step(Ticked(), 100)
    assert dispatcher.step(Ended(id=1), 101) == (Deliver(id=1, attempts=2),)
    assert dispatcher.server == "open"


def test_pauses_double_from_the_minimum_to_the_maximum_and_an_answered_prompt_begins_anew() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    now_us, pauses = 0, []
    for _ in range(6):
        dispatcher.step(Refused(id=1), now_us)
        wake_us = dispatcher.wake_us()
        assert wake_us is not None
        pauses.append(wake_us - now_us)
        now_us = wake_us
        assert dispatcher.step(Ticked(), now_us)[-1] == Send(id=1, attempt=len(pauses) + 1)
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]
    dispatcher.step(Accepted(id=1), now_us)
    dispatcher.step(Refused(id=1), now_us)
    assert dispatcher.wake_us() == now_us + 100


def test_a_hundred_refusals_in_a_row_still_pause_for_the_maximum() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    now_us = 0
    for _ in range(100):
        dispatcher.step(Refused(id=1), now_us)
        now_us = dispatcher.wake_us() or 0
        dispatcher.step(Ticked(), now_us)
    dispatcher.step(Refused(id=1), now_us)
    assert dispatcher.wake_us() == now_us + 1_000


def test_a_check_that_passes_does_not_shorten_the_pauses_but_a_prompt_does() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    dispatcher.step(Refused(id=1, suspect=True), 0)
    assert dispatcher.step(Ticked(), 100) == (Check(),)
    assert dispatcher.step(CheckPassed(), 100) == ()
    assert dispatcher.step(Ticked(), 200) == (Send(id=1, attempt=2),)
    dispatcher.step(Refused(id=1, suspect=True), 200)
    assert dispatcher.wake_us() == 400
    assert dispatcher.step(Ticked(), 400) == (Check(),)
    dispatcher.step(CheckPassed(), 400)
    assert dispatcher.step(Ticked(), 600) == (Send(id=1, attempt=3),)
    dispatcher.step(Accepted(id=1), 610)
    dispatcher.step(Refused(id=1, suspect=True), 620)
    assert dispatcher.wake_us() == 720


def test_requests_that_fail_together_count_once() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1), 0)
    dispatcher.step(Refused(id=2), 50)
    assert dispatcher.wake_us() == 100
    dispatcher.step(Ticked(), 100)
    dispatcher.step(Refused(id=1), 100)
    assert dispatcher.wake_us() == 300


def test_retry_after_lengthens_a_pause_never_shortens_it_and_has_a_maximum() -> None:
    for asked_us, pause_us in ((None, 100), (40, 100), (300, 300), (5_000, 5_000), (90_000, 5_000)):
        dispatcher = opened()
        arrive(dispatcher, 1)
        dispatcher.step(Refused(id=1, retry_after_us=asked_us), 10)
        assert dispatcher.wake_us() == 10 + pause_us
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1), 0)
    dispatcher.step(Refused(id=2, retry_after_us=400), 20)
    assert dispatcher.wake_us() == 420
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1, retry_after_us=400), 0)
    dispatcher.step(Refused(id=2, retry_after_us=100), 20)
    assert dispatcher.wake_us() == 400


def test_a_refused_check_pauses_and_is_asked_again() -> None:
    dispatcher = Dispatcher(LIMITS)
    dispatcher.step(Ticked(), 0)
    assert dispatcher.step(Refused(id=None), 0) == ()
    assert (dispatcher.server, dispatcher.wake_us()) == ("paused", 100)
    assert dispatcher.step(Ticked(), 100) == (Check(),)
    dispatcher.step(Refused(id=None, retry_after_us=700), 100)
    assert dispatcher.wake_us() == 800
    assert dispatcher.step(Ticked(), 800) == (Check(),)
    assert dispatcher.step(CheckPassed(), 900) == ()
    assert dispatcher.server == "open"


def test_what_was_sent_before_a_pause_neither_ends_it_nor_the_probing() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=2), 0)
    assert dispatcher.step(Accepted(id=1), 10) == ()
    assert dispatcher.server == "paused"
    assert dispatcher.step(Ticked(), 100) == (Send(id=2, attempt=2),)
    assert dispatcher.step(Accepted(id=1), 110) == ()
    assert dispatcher.step(Ended(id=1), 110) == (Deliver(id=1, attempts=1),)
    assert dispatcher.server == "probing"
    assert dispatcher.step(Ended(id=2), 120) == (Deliver(id=2, attempts=2),)
    assert dispatcher.server == "open"


def test_with_all_places_taken_the_probe_waits_for_one() -> None:
    dispatcher = opened(replace(LIMITS, concurrency=1))
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1), 0)
    assert dispatcher.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    dispatcher.check_integrity()
    two = opened()
    arrive(two, 1, 2, 3, 4)
    two.step(Refused(id=1), 0)  # 2 runs on; one place is free
    assert two.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    two.step(Refused(id=2), 100)  # the probe runs on, and is a probe no longer
    assert two.server == "paused"
    assert two.step(Accepted(id=1), 110) == ()
    assert two.step(Ticked(), 300) == (Send(id=2, attempt=2),)
    two.step(Refused(id=2), 300)
    assert two.step(Ended(id=1), 350) == (Deliver(id=1, attempts=2),)
    assert two.step(Ticked(), 700) == (Send(id=2, attempt=3),)
    two.check_integrity()


def test_a_revoked_probe_is_replaced_by_the_next_prompt_or_by_a_check() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1), 0)
    dispatcher.step(Refused(id=2), 0)
    assert dispatcher.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    assert dispatcher.step(Revoked(ids=frozenset({1})), 110) == (
        Cancel(id=1),
        Send(id=2, attempt=2),
    )
    assert dispatcher.step(Revoked(ids=frozenset({2})), 120) == (Cancel(id=2), Check())
    assert dispatcher.in_hand == 0


# ---- a prompt that is to blame


def test_a_prompt_under_suspicion_waits_as_long_again_after_pause_so_that_others_come_in() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    dispatcher.step(Refused(id=1, suspect=True, retry_after_us=300), 1_000)
    assert dispatcher.wake_us() == 1_300
    assert dispatcher.step(Ticked(), 1_300) == (Check(),)
    assert dispatcher.step(CheckPassed(), 1_310) == ()
    assert (dispatcher.server, dispatcher.credit(), dispatcher.wake_us()) == ("open", 4, 1_600)
    dispatcher.check_integrity()
    assert arrive(dispatcher, 2, now_us=1_400) == [Send(id=2, attempt=1)]
    assert dispatcher.step(Ticked(), 1_599) == ()
    assert dispatcher.step(Ticked(), 1_600) == (Send(id=1, attempt=2),)
    assert dispatcher.wake_us() is None


def test_a_prompt_that_fails_while_others_are_answered_is_given_up() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    now_us, other = 0, 100
    for attempt in (1, 2):
        assert dispatcher.step(Refused(id=1, suspect=True), now_us) == ()
        now_us += 100
        assert dispatcher.step(Ticked(), now_us) == (Check(),)
        assert dispatcher.step(CheckPassed(), now_us) == ()
        other += 1
        assert arrive(dispatcher, other, now_us=now_us) == [Send(id=other, attempt=1)]
        assert dispatcher.step(Ended(id=other), now_us) == (Deliver(id=other, attempts=1),)
        now_us += 100
        assert dispatcher.step(Ticked(), now_us) == (Send(id=1, attempt=attempt + 1),)
    assert dispatcher.step(Refused(id=1, suspect=True), now_us) == (GiveUp(id=1, attempts=3),)
    assert dispatcher.in_hand == 0
    assert dispatcher.server == "paused"


def test_a_prompt_that_fails_while_nothing_is_answered_is_tried_without_end() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    now_us = 0
    for attempt in range(1, 30):
        assert dispatcher.step(Refused(id=1, suspect=True), now_us) == ()
        now_us += 1_000
        assert dispatcher.step(Ticked(), now_us) == (Check(),)
        now_us += 1_000
        assert dispatcher.step(CheckPassed(), now_us) == (Send(id=1, attempt=attempt + 1),)
    assert dispatcher.in_hand == 1


def test_a_busy_server_is_no_fault_of_a_prompt_however_many_are_answered() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    now_us, other = 0, 100
    for attempt in range(1, 20):
        assert dispatcher.step(Refused(id=1), now_us) == ()
        now_us += 100_000
        assert dispatcher.step(Ticked(), now_us) == (Send(id=1, attempt=attempt + 1),)
        dispatcher.step(Accepted(id=1), now_us)
        other += 1
        arrive(dispatcher, other, now_us=now_us)
        dispatcher.step(Ended(id=other), now_us)
    assert dispatcher.in_hand == 1


def test_a_prompt_under_suspicion_is_no_probe_while_another_waits() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1, suspect=True), 0)
    dispatcher.step(Refused(id=2), 0)
    assert dispatcher.step(Ticked(), 100) == (Send(id=2, attempt=2),)
    assert dispatcher.step(Accepted(id=2), 110) == ()
    assert dispatcher.step(Ticked(), 200) == (Send(id=1, attempt=2),)


def test_a_prompt_that_is_not_suspect_waits_no_longer_than_the_pause() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    dispatcher.step(Refused(id=1), 0)
    dispatcher.step(Refused(id=2), 0)
    assert dispatcher.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    assert dispatcher.step(Accepted(id=1), 100) == (Send(id=2, attempt=2),)


def test_a_check_that_fails_suspiciously_is_a_refusal_like_another() -> None:
    dispatcher = Dispatcher(LIMITS)
    dispatcher.step(Ticked(), 0)
    assert dispatcher.step(Refused(id=None, suspect=True), 0) == ()
    assert (dispatcher.server, dispatcher.wake_us()) == ("paused", 100)


def test_a_probe_waits_for_room_at_the_server() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2, 3)
    dispatcher.step(Refused(id=1), 0)
    arrive(dispatcher, 4)
    assert dispatcher.running == 1
    assert dispatcher.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    assert dispatcher.running == LIMITS.concurrency

    narrow = opened(replace(LIMITS, concurrency=1))
    arrive(narrow, 1, 2)
    narrow.step(Refused(id=1), 0)
    assert narrow.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    assert narrow.step(Ticked(), 200) == ()
