"""The dispatcher: order, deadlines, revocation, and that each query ends once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.dispatch import (
    OLDEST_EVERY,
    Accepted,
    Action,
    Arrived,
    Cancel,
    Check,
    CheckPassed,
    Deliver,
    Dispatcher,
    Ended,
    Event,
    Expire,
    GiveUp,
    Limits,
    Refused,
    Revoked,
    Send,
    Ticked,
)
from generator.plan.order import ArrivalOrder, Prompt
from tests.generator.dispatching import LIMITS, arrive, opened


def test_the_order_is_priority_then_deadline_then_arrival_then_id() -> None:
    expected = [
        Prompt(id=9, arrival_us=50, priority=-1),
        Prompt(id=8, arrival_us=40, deadline_us=500),
        Prompt(id=7, arrival_us=30, deadline_us=600),
        Prompt(id=3, arrival_us=10),
        Prompt(id=4, arrival_us=10),
        Prompt(id=1, arrival_us=20),
        Prompt(id=0, arrival_us=0, priority=1, deadline_us=100),
    ]
    waiting = sorted(expected, key=lambda prompt: prompt.id)
    chosen = []
    while waiting:
        chosen.append(ArrivalOrder().first(waiting))
        waiting.remove(chosen[-1])
    assert chosen == expected


@given(st.permutations([Prompt(id=id, arrival_us=id % 2, priority=id % 3) for id in range(6)]))
def test_the_choice_does_not_depend_on_the_sequence_of_the_waiting(waiting: list[Prompt]) -> None:
    assert ArrivalOrder().first(waiting).id == 0


# ---- flow


def test_it_begins_by_checking_the_server_and_takes_nothing_before_the_answer() -> None:
    dispatcher = Dispatcher(LIMITS)
    assert (dispatcher.server, dispatcher.credit()) == ("probing", 0)
    assert dispatcher.step(Ticked(), 0) == (Check(),)
    assert dispatcher.step(Ticked(), 1) == ()
    assert dispatcher.credit() == 0
    assert dispatcher.step(CheckPassed(), 2) == ()
    assert (dispatcher.server, dispatcher.credit()) == ("open", 5)


def test_no_more_than_concurrency_run_and_the_next_follows_when_one_ends() -> None:
    dispatcher = opened()
    assert arrive(dispatcher, 1, 2, 3) == [Send(id=1, attempt=1), Send(id=2, attempt=1)]
    assert (dispatcher.running, dispatcher.in_hand, dispatcher.credit()) == (2, 3, 2)
    assert dispatcher.step(Ended(id=2), 1) == (Deliver(id=2, attempts=1), Send(id=3, attempt=1))
    assert dispatcher.step(Ended(id=1), 2) == (Deliver(id=1, attempts=1),)
    assert dispatcher.step(Ended(id=3), 3) == (Deliver(id=3, attempts=1),)
    assert (dispatcher.running, dispatcher.in_hand, dispatcher.credit()) == (0, 0, 5)
    dispatcher.check_integrity()


def test_what_is_gone_changes_nothing() -> None:
    dispatcher = opened()
    for event in (
        Accepted(id=7),
        Ended(id=7),
        Refused(id=7),
        Revoked(ids=frozenset({7})),
        Refused(id=None),
    ):
        assert dispatcher.step(event, 1) == ()
        assert dispatcher.server == "open"


def test_a_prompt_that_comes_twice_is_a_fault_of_the_caller() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1)
    with pytest.raises(AssertionError, match="came twice"):
        arrive(dispatcher, 1)
    arrive(dispatcher, 2, 3)
    with pytest.raises(AssertionError, match="came twice"):
        arrive(dispatcher, 3)


# ---- deadlines


def test_a_waiting_query_expires_at_its_deadline_and_not_before() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, 2)
    arrive(dispatcher, 3, deadline_us=500)
    assert dispatcher.wake_us() == 500
    assert dispatcher.step(Ticked(), 499) == ()
    assert dispatcher.step(Ticked(), 500) == (Expire(id=3, attempts=0),)
    assert dispatcher.wake_us() is None


def test_a_running_query_is_cancelled_and_expired_and_makes_room() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, deadline_us=500)
    arrive(dispatcher, 2, 3)
    assert dispatcher.wake_us() == 500
    assert dispatcher.step(Ticked(), 600) == (
        Cancel(id=1),
        Expire(id=1, attempts=1),
        Send(id=3, attempt=1),
    )


def test_an_answer_that_comes_at_the_deadline_is_expired_not_delivered() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, deadline_us=500)
    assert dispatcher.step(Ended(id=1), 500) == (Cancel(id=1), Expire(id=1, attempts=1))
    early = opened()
    arrive(early, 1, deadline_us=500)
    assert early.step(Ended(id=1), 499) == (Deliver(id=1, attempts=1),)


def test_a_query_that_comes_late_is_expired_and_never_sent() -> None:
    dispatcher = opened()
    prompt = Prompt(id=1, arrival_us=600, deadline_us=500)
    assert dispatcher.step(Arrived(prompt=prompt), 600) == (Expire(id=1, attempts=0),)


def test_deadlines_pass_during_a_pause_and_wake_it() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, deadline_us=50)
    dispatcher.step(Refused(id=1), 0)
    assert dispatcher.wake_us() == 50
    assert dispatcher.step(Ticked(), 50) == (Expire(id=1, attempts=1),)
    assert dispatcher.wake_us() == 100
    assert dispatcher.step(Ticked(), 100) == (Check(),)


def test_an_expired_probe_is_replaced() -> None:
    dispatcher = opened()
    arrive(dispatcher, 1, deadline_us=150)
    dispatcher.step(Refused(id=1), 0)
    assert dispatcher.step(Ticked(), 100) == (Send(id=1, attempt=2),)
    assert dispatcher.step(Ticked(), 150) == (Cancel(id=1), Expire(id=1, attempts=2), Check())


# ---- revocation


def test_revoked_queries_are_forgotten_and_their_requests_cancelled() -> None:
    dispatcher = opened()
    arrive(dispatcher, 5, 4, 3, 2)
    assert dispatcher.step(Revoked(ids=frozenset({2, 5, 9})), 1) == (
        Cancel(id=5),
        Send(id=3, attempt=1),
    )
    assert dispatcher.in_hand == 2
    assert dispatcher.step(Ended(id=5), 2) == ()
    assert dispatcher.step(Revoked(ids=frozenset({4, 3})), 3) == (Cancel(id=3), Cancel(id=4))
    assert dispatcher.in_hand == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "arrive",
                "accept",
                "end",
                "refuse",
                "suspect",
                "check",
                "check_refused",
                "revoke",
                "tick",
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 400),
    ),
    max_size=120,
)


class Bookkeeper:
    """Follows the actions alone, and knows nothing of how they were decided."""

    def __init__(self) -> None:
        self.waiting: dict[int, Prompt] = {}
        self.running: dict[int, Prompt] = {}
        self.attempts: dict[int, int] = {}
        self.terminal: dict[int, str] = {}
        self.revoked: set[int] = set()
        self.check_is_out = False
        self.cancelled_now: list[int] = []

    def note(self, event: Event, now_us: int) -> None:
        """Takes in what happened. What is late is the dispatcher's to expire, whatever the event
        says of it.
        """
        match event:
            case Arrived(prompt=prompt):
                self.waiting[prompt.id] = prompt
            case Refused(id=None) | CheckPassed():
                self.check_is_out = False
            case Refused(id=id) if id is not None and not late(self.running[id], now_us):
                self.waiting[id] = self.running.pop(id)
            case Revoked(ids=ids):
                gone = {
                    id for id in ids if not late(self.waiting.get(id) or self.running[id], now_us)
                }
                self.revoked |= gone
                for id in gone:
                    self.waiting.pop(id, None)
                    self.running.pop(id, None)

    def follow(self, actions: tuple[Action, ...], limits: Limits, now_us: int) -> None:
        for action in actions:
            match action:
                case Send(id=id, attempt=attempt):
                    self.running[id] = self.waiting.pop(id)
                    self.attempts[id] = self.attempts.get(id, 0) + 1
                    assert attempt == self.attempts[id]
                    assert len(self.running) <= limits.concurrency
                case Check():
                    self.check_is_out = True
                case Cancel(id=id):
                    self.cancelled_now.append(id)
                case Expire(id=id, attempts=attempts):
                    prompt = self.running.pop(id, None) or self.waiting.pop(id)
                    assert prompt.deadline_us is not None and now_us >= prompt.deadline_us
                    assert attempts == self.attempts.get(id, 0)
                    self.end(id, "expired")
                case GiveUp(id=id, attempts=attempts):
                    self.waiting.pop(id)
                    assert attempts == self.attempts[id] > limits.failures_max
                    self.end(id, "failed")
                case Deliver(id=id, attempts=attempts):
                    self.running.pop(id)
                    assert attempts == self.attempts[id]
                    self.end(id, "answered")

    def end(self, id: int, how: str) -> None:
        assert id not in self.terminal and id not in self.revoked, (
            "a query ends once, and not after it was revoked"
        )
        self.terminal[id] = how


def event_of(kind: str, number: int, books: Bookkeeper, next_id: int, now_us: int) -> Event | None:
    running = sorted(books.running)
    chosen = running[number % len(running)] if running else None
    match kind:
        case "arrive":
            deadline_us = now_us + 300 * number if number > 2 else None
            return Arrived(
                prompt=Prompt(
                    id=next_id, arrival_us=now_us, priority=number % 2, deadline_us=deadline_us
                )
            )
        case "check" if books.check_is_out:
            return CheckPassed()
        case "check_refused" if books.check_is_out:
            return Refused(id=None)
        case "revoke":
            return Revoked(ids=frozenset(sorted({*books.waiting, *books.running})[: number % 3]))
        case "tick":
            return Ticked()
        case "accept" | "end" | "refuse" | "suspect" if chosen is not None:
            return {
                "accept": Accepted(id=chosen),
                "end": Ended(id=chosen),
                "refuse": Refused(id=chosen, retry_after_us=number * 50),
                "suspect": Refused(id=chosen, suspect=True),
            }[kind]
        case _:
            return None


# ---- against a plain bookkeeper, over random histories


@given(STEPS)
def test_over_any_history_each_query_ends_once_or_is_still_in_hand(
    steps: list[tuple[str, int, int]],
) -> None:
    limits = replace(LIMITS, failures_max=1)
    dispatcher, books = Dispatcher(limits), Bookkeeper()
    now_us, next_id = 0, 0
    for kind, number, wait_us in steps:
        now_us += wait_us
        event = event_of(kind, number, books, next_id, now_us)
        if event is None:
            continue
        before_open = dispatcher.server == "open"
        books.cancelled_now = []
        was_running = dict(books.running)
        next_id += isinstance(event, Arrived)
        books.note(event, now_us)
        actions = dispatcher.step(event, now_us)
        books.follow(actions, limits, now_us)
        dispatcher.check_integrity()
        assert (
            dispatcher.in_hand
            == len(books.waiting) + len(books.running)
            == next_id - len(books.terminal) - len(books.revoked)
        )
        assert dispatcher.running == len(books.running)
        for id in books.cancelled_now:
            assert id in was_running and id not in books.running
        sent = [action for action in actions if isinstance(action, Send)]
        if not before_open and dispatcher.server != "open":
            assert len(sent) <= 1, "only a probe is sent to a server that refused"
        if dispatcher.server == "paused":
            assert not sent
            assert dispatcher.credit() == 0
        wake_us = dispatcher.wake_us()
        assert wake_us is None or wake_us > now_us, "what is due was done"


def late(prompt: Prompt, now_us: int) -> bool:
    return prompt.deadline_us is not None and now_us >= prompt.deadline_us


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(0, 3), st.none() | st.integers(50, 53)),
        max_size=20,
    )
)
def test_an_open_server_gets_prompts_as_a_plain_sort_gives_them_and_now_and_then_the_oldest(
    rows: list[tuple[int, int, int | None]],
) -> None:
    limits = replace(LIMITS, concurrency=1, in_hand_max=100)
    dispatcher = Dispatcher(limits)
    dispatcher.step(Ticked(), 0)
    prompts = [
        Prompt(id=id, priority=priority, arrival_us=arrival_us, deadline_us=deadline_us)
        for id, (priority, arrival_us, deadline_us) in enumerate(rows)
    ]
    for prompt in prompts:
        assert dispatcher.step(Arrived(prompt=prompt), 4) == ()
    sent = [action.id for action in dispatcher.step(CheckPassed(), 4) if isinstance(action, Send)]
    while dispatcher.running:
        actions = dispatcher.step(Ended(id=sent[-1]), 5)
        sent += [action.id for action in actions if isinstance(action, Send)]
    infinity = 1_000
    left = sorted(
        prompts, key=lambda p: (p.priority, p.deadline_us or infinity, p.arrival_us, p.id)
    )
    plain: list[Prompt] = []
    while left:
        is_oldest_due = (len(plain) + 1) % OLDEST_EVERY == 0
        plain.append(min(left, key=lambda p: (p.arrival_us, p.id)) if is_oldest_due else left[0])
        left.remove(plain[-1])
    assert sent == [prompt.id for prompt in plain]


def test_no_priority_keeps_a_prompt_waiting_for_ever() -> None:
    dispatcher = Dispatcher(replace(LIMITS, concurrency=1, in_hand_max=100))
    dispatcher.step(Ticked(), 0)
    dispatcher.step(CheckPassed(), 0)
    dispatcher.step(Arrived(prompt=Prompt(id=0, arrival_us=1)), 1)
    dispatcher.step(Arrived(prompt=Prompt(id=1, arrival_us=2, priority=10_000)), 2)
    sent = [0]
    for id in range(2, 40):
        dispatcher.step(Arrived(prompt=Prompt(id=id, arrival_us=id + 1)), id + 1)
        sent += [
            action.id
            for action in dispatcher.step(Ended(id=sent[-1]), id + 1)
            if isinstance(action, Send)
        ]
    assert sent.index(1) < OLDEST_EVERY


# ---- edges that a mutation run found unguarded


def test_the_order_that_is_passed_in_is_the_one_that_is_asked() -> None:
    class LastFirst:
        def first(self, waiting: Iterable[Prompt]) -> Prompt:
            return max(waiting, key=lambda prompt: prompt.id)

    dispatcher = Dispatcher(replace(LIMITS, concurrency=1), LastFirst())
    dispatcher.step(Ticked(), 0)
    arrive(dispatcher, 1, 2, 3)
    assert dispatcher.step(CheckPassed(), 0) == (Send(id=3, attempt=1),)


def test_there_is_no_credit_left_for_prompts_that_came_beyond_it() -> None:
    dispatcher = opened()
    arrive(dispatcher, *range(LIMITS.in_hand_max + 2))
    assert dispatcher.credit() == 0
