"""The dispatcher: order, deadlines, revocation, and that each query ends once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.backoff import Backoff
from generator.plan.dispatch import (
    CancelRequest,
    CheckPassed,
    CheckServer,
    DeliverAnswer,
    DispatchAction,
    Dispatcher,
    DispatchEvent,
    DispatchLimits,
    ExpireQuery,
    GiveUpQuery,
    PromptArrived,
    PromptsRevoked,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    SendPrompt,
    TimePassed,
)
from generator.plan.order import ArrivalOrder, Prompt
from generator.plan.queue import OLDEST_EVERY
from tests.generator.dispatching import LIMITS, DispatchTranscript
from tests.transcripts import Execute


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


TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("dispatch_*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_dispatch_transcript(path: Path, check_transcript: Callable[[Path, Execute], None]) -> None:
    check_transcript(path, DispatchTranscript().execute)


def test_a_hundred_refusals_in_a_row_still_pause_for_the_maximum() -> None:
    backoff = Backoff(100, 1_000)
    assert [backoff.next_us() for _ in range(100)] == [100, 200, 400, 800] + 96 * [1_000]
    backoff.reset()
    assert backoff.next_us() == 100


def test_a_prompt_that_comes_twice_is_a_fault_of_the_caller() -> None:
    dispatcher = Dispatcher(LIMITS)
    dispatcher.step(TimePassed(), 0)
    for id in (1, 2):
        arrive(dispatcher, id)
    dispatcher.step(CheckPassed(), 0)
    arrive(dispatcher, 3)
    for id in (1, 3):
        with pytest.raises(AssertionError, match="came twice"):
            arrive(dispatcher, id)


def arrive(dispatcher: Dispatcher, id: int) -> None:
    dispatcher.step(PromptArrived(prompt=Prompt(id=id, arrival_us=0)), 0)


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


class Accounts:
    """Follows the actions alone, without knowing how they were decided."""

    def __init__(self) -> None:
        self.waiting: dict[int, Prompt] = {}
        self.running: dict[int, Prompt] = {}
        self.attempts: dict[int, int] = {}
        self.terminal: dict[int, str] = {}
        self.revoked: set[int] = set()
        self.check_is_out = False
        self.cancelled_now: list[int] = []

    def note(self, event: DispatchEvent, now_us: int) -> None:
        """Notes an event. The dispatcher expires what is late, whatever the event says of it."""
        match event:
            case PromptArrived(prompt=prompt):
                self.waiting[prompt.id] = prompt
            case RequestRefused(id=None) | CheckPassed():
                self.check_is_out = False
            case RequestRefused(id=id) if id is not None and not self.running[id].is_late(now_us):
                self.waiting[id] = self.running.pop(id)
            case PromptsRevoked(ids=ids):
                gone = {
                    id
                    for id in ids
                    if not (self.waiting.get(id) or self.running[id]).is_late(now_us)
                }
                self.revoked |= gone
                for id in gone:
                    self.waiting.pop(id, None)
                    self.running.pop(id, None)

    def follow(
        self, actions: tuple[DispatchAction, ...], limits: DispatchLimits, now_us: int
    ) -> None:
        for action in actions:
            match action:
                case SendPrompt(id=id, attempt=attempt):
                    self.running[id] = self.waiting.pop(id)
                    self.attempts[id] = self.attempts.get(id, 0) + 1
                    assert attempt == self.attempts[id]
                    assert len(self.running) <= limits.concurrency
                case CheckServer():
                    self.check_is_out = True
                case CancelRequest(id=id):
                    self.cancelled_now.append(id)
                case ExpireQuery(id=id, attempts=attempts):
                    prompt = self.running.pop(id, None) or self.waiting.pop(id)
                    assert prompt.is_late(now_us)
                    assert attempts == self.attempts.get(id, 0)
                    self.end(id, "expired")
                case GiveUpQuery(id=id, attempts=attempts):
                    self.waiting.pop(id)
                    assert attempts == self.attempts[id] > limits.failures_max
                    self.end(id, "failed")
                case DeliverAnswer(id=id, attempts=attempts):
                    self.running.pop(id)
                    assert attempts == self.attempts[id]
                    self.end(id, "answered")

    def end(self, id: int, how: str) -> None:
        assert id not in self.terminal and id not in self.revoked, (
            "a query ends once, and not after it was revoked"
        )
        self.terminal[id] = how


def event_of(
    kind: str, number: int, accounts: Accounts, next_id: int, now_us: int
) -> DispatchEvent | None:
    running = sorted(accounts.running)
    chosen = running[number % len(running)] if running else None
    match kind:
        case "arrive":
            deadline_us = now_us + 300 * number if number > 2 else None
            return PromptArrived(
                prompt=Prompt(
                    id=next_id, arrival_us=now_us, priority=number % 2, deadline_us=deadline_us
                )
            )
        case "check" if accounts.check_is_out:
            return CheckPassed()
        case "check_refused" if accounts.check_is_out:
            return RequestRefused(id=None)
        case "revoke":
            return PromptsRevoked(
                ids=frozenset(sorted({*accounts.waiting, *accounts.running})[: number % 3])
            )
        case "tick":
            return TimePassed()
        case "accept" | "end" | "refuse" | "suspect" if chosen is not None:
            return {
                "accept": RequestAccepted(id=chosen),
                "end": RequestEnded(id=chosen),
                "refuse": RequestRefused(id=chosen, retry_after_us=number * 50),
                "suspect": RequestRefused(id=chosen, suspect=True),
            }[kind]
        case _:
            return None


# ---- against a plain bookkeeper, over random histories


@given(STEPS)
def test_over_any_history_each_query_ends_once_or_is_still_there(
    steps: list[tuple[str, int, int]],
) -> None:
    limits = replace(LIMITS, failures_max=1)
    dispatcher, accounts = Dispatcher(limits), Accounts()
    now_us, next_id = 0, 0
    for kind, number, wait_us in steps:
        now_us += wait_us
        event = event_of(kind, number, accounts, next_id, now_us)
        if event is None:
            continue
        before_open = dispatcher.server == "open"
        accounts.cancelled_now = []
        was_running = dict(accounts.running)
        next_id += isinstance(event, PromptArrived)
        accounts.note(event, now_us)
        actions = dispatcher.step(event, now_us)
        accounts.follow(actions, limits, now_us)
        dispatcher.check_integrity()
        assert (
            dispatcher.prompts
            == len(accounts.waiting) + len(accounts.running)
            == next_id - len(accounts.terminal) - len(accounts.revoked)
        )
        assert dispatcher.in_flight == len(accounts.running)
        for id in accounts.cancelled_now:
            assert id in was_running and id not in accounts.running
        sent = [action for action in actions if isinstance(action, SendPrompt)]
        if not before_open and dispatcher.server != "open":
            assert len(sent) <= 1, "only a probe is sent to a server that refused"
        if dispatcher.server == "paused":
            assert not sent
            assert dispatcher.credit() == 0
        wake_us = dispatcher.wake_us()
        assert wake_us is None or wake_us > now_us, "what is due was done"


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(0, 3), st.none() | st.integers(50, 53)),
        max_size=20,
    )
)
def test_an_open_server_gets_prompts_as_a_plain_sort_gives_them_and_now_and_then_the_oldest(
    rows: list[tuple[int, int, int | None]],
) -> None:
    limits = replace(LIMITS, concurrency=1, prompts_max=100)
    dispatcher = Dispatcher(limits)
    dispatcher.step(TimePassed(), 0)
    prompts = [
        Prompt(id=id, priority=priority, arrival_us=arrival_us, deadline_us=deadline_us)
        for id, (priority, arrival_us, deadline_us) in enumerate(rows)
    ]
    for prompt in prompts:
        assert dispatcher.step(PromptArrived(prompt=prompt), 4) == ()
    sent = [
        action.id for action in dispatcher.step(CheckPassed(), 4) if isinstance(action, SendPrompt)
    ]
    while dispatcher.in_flight:
        actions = dispatcher.step(RequestEnded(id=sent[-1]), 5)
        sent += [action.id for action in actions if isinstance(action, SendPrompt)]
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
    dispatcher = Dispatcher(replace(LIMITS, concurrency=1, prompts_max=100))
    dispatcher.step(TimePassed(), 0)
    dispatcher.step(CheckPassed(), 0)
    dispatcher.step(PromptArrived(prompt=Prompt(id=0, arrival_us=1)), 1)
    dispatcher.step(PromptArrived(prompt=Prompt(id=1, arrival_us=2, priority=10_000)), 2)
    sent = [0]
    for id in range(2, 40):
        dispatcher.step(PromptArrived(prompt=Prompt(id=id, arrival_us=id + 1)), id + 1)
        sent += [
            action.id
            for action in dispatcher.step(RequestEnded(id=sent[-1]), id + 1)
            if isinstance(action, SendPrompt)
        ]
    assert sent.index(1) < OLDEST_EVERY


def test_the_order_that_is_passed_in_is_the_one_that_is_asked() -> None:
    class LastFirst:
        def first(self, waiting: Iterable[Prompt]) -> Prompt:
            return max(waiting, key=lambda prompt: prompt.id)

    dispatcher = Dispatcher(replace(LIMITS, concurrency=1), LastFirst())
    dispatcher.step(TimePassed(), 0)
    for id in (1, 2, 3):
        arrive(dispatcher, id)
    assert dispatcher.step(CheckPassed(), 0) == (SendPrompt(id=3, attempt=1),)
