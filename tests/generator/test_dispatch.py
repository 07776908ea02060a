"""The dispatcher: order, deadlines, revocation, and that each query ends once.

Commands of its transcripts: `new` begins with another dispatcher, `open` with one whose server has
passed a check. `TIME EVENT [ids] [option=value]` is one step at TIME, in microseconds. Its output
is the actions, and the state after the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    PromptHastened,
    PromptsRevoked,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    SendPrompt,
    TimePassed,
)
from generator.plan.queue import OLDEST_EVERY, Prompt
from tests.transcripts import Execute

LIMITS = DispatchLimits(
    concurrency=2,
    prompts_max=5,
    backoff_us_min=100,
    backoff_us_max=1_000,
    retry_after_us_max=5_000,
    failures_max=2,
)


class DispatchTranscript:
    """Executes the commands of one transcript."""

    def execute(self, command: str) -> list[str]:
        """Returns the actions of a command, one a line, and the state."""
        first, *words = command.split()
        options = {
            name: int(value) for name, _, value in (word.partition("=") for word in words) if value
        }
        if first == "new":
            self.dispatcher = Dispatcher(replace(LIMITS, **options))
            return []
        if first == "open":
            self.dispatcher = open_dispatcher(**options)
            return []
        kind, *arguments = (word for word in words if "=" not in word)
        ids = [int(argument) for argument in arguments if argument.isdigit()]
        now_us = int(first)
        output = []
        for event in _events(kind, ids, options, "suspect" in arguments, now_us):
            actions = self.dispatcher.step(event, now_us)
            self.dispatcher.check_integrity()
            output += [
                f"{type(action).__name__} " + " ".join(str(getattr(action, name)) for name in names)
                if (names := action.__slots__)
                else type(action).__name__
                for action in actions
            ]
        return [*output, self._state()]

    def _state(self) -> str:
        one = self.dispatcher
        return (
            f"{one.server}: {one.prompts} prompts, {one.in_flight} in flight, "
            f"credit {one.credit()}, wakes at {one.wake_us()}"
        )


def _events(
    kind: str, ids: list[int], options: dict[str, int], suspect: bool, now_us: int
) -> list[DispatchEvent]:
    match kind:
        case "arrive":
            prompts = (Prompt(id=id, arrival_us=now_us, **options) for id in ids)
            return [PromptArrived(prompt=prompt) for prompt in prompts]
        case "accept":
            return [RequestAccepted(id=id) for id in ids]
        case "end":
            return [RequestEnded(id=id) for id in ids]
        case "refuse":
            refused = ids or [None]
            return [RequestRefused(id=id, suspect=suspect, **options) for id in refused]
        case "pass":
            return [CheckPassed()]
        case "revoke":
            return [PromptsRevoked(ids=frozenset(ids))]
        case "wait":
            return [TimePassed()]
    raise ValueError(f"no event {kind!r}")


TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("dispatch_*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_dispatch_transcript(path: Path, check_transcript: Callable[[Path, Execute], None]) -> None:
    check_transcript(path, DispatchTranscript().execute)


def open_dispatcher(**limits: int) -> Dispatcher:
    """A dispatcher without prompts, whose server has passed a check."""
    dispatcher = Dispatcher(replace(LIMITS, **limits))
    dispatcher.step(TimePassed(), 0)
    dispatcher.step(CheckPassed(), 0)
    return dispatcher


def sent_by(actions: tuple[DispatchAction, ...]) -> list[int]:
    return [action.id for action in actions if isinstance(action, SendPrompt)]


@pytest.mark.parametrize("place", ["in flight", "waiting"])
def test_a_prompt_that_comes_twice_is_a_fault_of_the_caller(place: str) -> None:
    dispatcher = open_dispatcher(concurrency=1)
    dispatcher.step(PromptArrived(prompt=Prompt(id=1, arrival_us=0)), 0)
    dispatcher.step(PromptArrived(prompt=Prompt(id=2, arrival_us=0)), 0)
    twice = Prompt(id=1 if place == "in flight" else 2, arrival_us=0)
    with pytest.raises(AssertionError, match="came twice"):
        dispatcher.step(PromptArrived(prompt=twice), 0)


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
                case ExpireQuery(id=id):
                    prompt = self.running.pop(id, None) or self.waiting.pop(id)
                    assert prompt.is_late(now_us)
                    self.end(id, "expired")
                case GiveUpQuery(id=id):
                    self.waiting.pop(id)
                    assert self.attempts[id] > limits.failures_max
                    self.end(id, "failed")
                case DeliverAnswer(id=id):
                    self.running.pop(id)
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
        sent = sent_by(actions)
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
    sent = sent_by(dispatcher.step(CheckPassed(), 4))
    while dispatcher.in_flight:
        sent += sent_by(dispatcher.step(RequestEnded(id=sent[-1]), 5))
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


def test_no_prompt_waits_without_end_for_more_urgent_ones() -> None:
    dispatcher = open_dispatcher(concurrency=1, prompts_max=100)
    dispatcher.step(PromptArrived(prompt=Prompt(id=0, arrival_us=1)), 1)
    dispatcher.step(PromptArrived(prompt=Prompt(id=1, arrival_us=2, priority=10_000)), 2)
    sent = [0]
    for id in range(2, 40):
        dispatcher.step(PromptArrived(prompt=Prompt(id=id, arrival_us=id + 1)), id + 1)
        sent += sent_by(dispatcher.step(RequestEnded(id=sent[-1]), id + 1))
    assert sent.index(1) < OLDEST_EVERY


def test_a_hastened_prompt_is_sent_as_soon_as_its_most_urgent_follower_and_expires_as_before() -> (
    None
):
    dispatcher = open_dispatcher(concurrency=1, prompts_max=100)
    for id, priority, deadline_us in ((0, 0, None), (1, 0, None), (2, 5, 900), (3, 5, None)):
        prompt = Prompt(id=id, arrival_us=id, priority=priority, deadline_us=deadline_us)
        dispatcher.step(PromptArrived(prompt=prompt), id)
    for id, priority, deadline_us in ((3, 0, 700), (2, 0, None), (9, 0, None)):
        event = PromptHastened(id=id, priority=priority, deadline_us=deadline_us)
        assert dispatcher.step(event, 10) == ()
        dispatcher.check_integrity()
    assert sent_by(dispatcher.step(RequestEnded(id=0), 20)) == [3], "by a follower's deadline"
    assert dispatcher.wake_us() == 900, "it does not expire with its follower"
    assert sent_by(dispatcher.step(RequestEnded(id=3), 800)) == [2], "before one without a deadline"
    actions = dispatcher.step(TimePassed(), 900)
    assert ExpireQuery(id=2) in actions
    assert sent_by(actions) == [1]
