"""Scripted LLM servers in virtual time: a simulation around the real `Dispatcher`.

Prompts wait in a topic until the dispatcher has room for them, as they do in Kafka. A server is a
rule that says how it answers a request, and when.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from generator.plan.dispatch import Dispatcher
from generator.plan.dispatch_events import (
    CancelRequest,
    DispatchAction,
    DispatchEvent,
    EndQuery,
    ProbePassed,
    ProbeServer,
    PromptArrived,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    SendPrompt,
    TimePassed,
)
from generator.plan.queue import Prompt
from generator.plan.refusals import RefusedAs

MS, S = 1_000, 1_000_000
LATENCY_US, WRITING_US = 200 * MS, 800 * MS
PROMPT_TOKENS, CANARY_TOKENS = 1_000, 10
WORLD_S_MAX = 20_000
KINDS: dict[str, RefusedAs] = {
    "429": "later",
    "503": "later",
    "unreachable": "later",
    "502": "gateway",
    "504": "gateway",
    "403": "failed",
    "404": "failed",
    "409": "failed",
    "425": "failed",
    "307": "failed",
    "html": "failed",
    "500": "failed",
}
"""How each refusal is sorted."""
What: TypeAlias = Literal["prompt", "canary", "check"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a server gets. `is_bad`: the prompt has what some servers refuse."""

    what: What
    now_us: int
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A reply that is none, such as `429`."""

    kind: str
    delay_us: int = 20 * MS
    retry_after_us: int | None = None


Rule: TypeAlias = Callable[[Request], Refused | None]
"""How a server answers; None: it accepts the request."""


def healthy(_: Request) -> None:
    """Accepts everything."""


def refuses_bad(kind: str) -> Rule:
    """Refuses what is bad, always."""
    return lambda one: Refused(kind=kind) if one.is_bad else None


def refuses_prompts(kind: str) -> Rule:
    """Refuses every prompt, and passes checks and canaries."""
    return lambda one: Refused(kind=kind) if one.what == "prompt" else None


def down_for(seconds: int, kind: str) -> Rule:
    """Refuses everything from second 5 on, for some time."""
    return lambda one: Refused(kind=kind) if 5 * S <= one.now_us < (5 + seconds) * S else None


def refuses_half(kind: str, seed: int) -> Rule:
    """Refuses each second request for tokens, at random."""
    chance = random.Random(seed)
    return lambda one: Refused(kind=kind) if one.what != "check" and chance.random() < 0.5 else None


def token_limit(*, a_minute: int, window_s: int, says_when: bool) -> Rule:
    """Grants so many tokens a minute, in equal parts at the beginning of each window."""
    window, left = -1, 0

    def rule(one: Request) -> Refused | None:
        nonlocal window, left
        if (now := one.now_us // (window_s * S)) != window:
            window, left = now, a_minute * window_s // 60
        needed = {"prompt": PROMPT_TOKENS, "canary": CANARY_TOKENS, "check": 0}[one.what]
        if left >= needed:
            left -= needed
            return None
        wait_us = (window + 1) * window_s * S - one.now_us
        return Refused(kind="429", retry_after_us=wait_us if says_when else None)

    return rule


@dataclass(kw_only=True)
class Figures:
    """What became of the prompts of a world. Times are seconds; None: it did not happen."""

    answered: int = 0
    failed: int = 0
    bad_ended: int = 0
    expired: int = 0
    good_begin_s: float | None = None
    bad_end_s: float = 0.0
    last_answer_s: float = 0.0


@dataclass(kw_only=True)
class World:
    """Servers, and prompts by the time of their arrival: (microseconds, is bad, deadline)."""

    rules: Sequence[Rule]
    prompts: Sequence[tuple[int, bool, int | None]]
    slots: int
    figures: Figures = field(default_factory=Figures)
    ended_us: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dispatcher = Dispatcher(
            concurrency=self.slots,
            prompts_max=8 * self.slots * len(self.rules),
            tries_max=6,
            later_us_max=3_600 * S,
            servers=len(self.rules),
        )
        self._now_us, self._seq = 0, 0
        self._due: list[tuple[int, int, DispatchEvent, int]] = []  # the last one: its request
        self._topic: deque[int] = deque()
        self._requests: dict[int, int] = {}  # prompt -> the request that is not over
        self._arrived = 0

    def run(self) -> Figures:
        """Runs until every prompt has ended. Fails at a deadlock."""
        self._step(TimePassed())
        while len(self.ended_us) < len(self.prompts):
            wake_us = self._dispatcher.wake_us()
            arrival_us = self._next_arrival_us()
            times = [self._due[0][0] if self._due else None, wake_us, arrival_us]
            known = [time_us for time_us in times if time_us is not None]
            assert known, "nothing will happen any more, and a prompt waits"
            self._now_us = max(self._now_us, min(known))
            assert self._now_us < WORLD_S_MAX * S, "a prompt never ends"
            while self._next_arrival_us() is not None and self._next_arrival_us() <= self._now_us:
                self._topic.append(self._arrived)
                self._arrived += 1
            if self._due and self._due[0][0] <= self._now_us:
                _, _, event, request = heappop(self._due)
                self._happen(event, request)
            else:
                self._step(TimePassed())
        return self.figures

    def _next_arrival_us(self) -> int | None:
        return self.prompts[self._arrived][0] if self._arrived < len(self.prompts) else None

    def _happen(self, event: DispatchEvent, request: int) -> None:
        if isinstance(event, RequestAccepted | RequestEnded | RequestRefused) and (
            event.id is not None
        ):
            if self._requests.get(event.id) != request:
                return  # it was cancelled
            is_good = not self.prompts[event.id][1]
            is_first = self.figures.good_begin_s is None
            if isinstance(event, RequestAccepted) and is_good and is_first:
                arrival_us = min(at for at, is_bad, _ in self.prompts if not is_bad)
                self.figures.good_begin_s = (self._now_us - arrival_us) / S
        self._step(event)

    def _step(self, event: DispatchEvent) -> None:
        self._act(self._dispatcher.step(event, self._now_us))
        self._dispatcher.check_integrity()
        while self._topic and self._dispatcher.credit():
            id = self._topic.popleft()
            arrival_us, _, deadline_us = self.prompts[id]
            prompt = Prompt(id=id, arrival_us=arrival_us, deadline_us=deadline_us)
            self._act(self._dispatcher.step(PromptArrived(prompt=prompt), self._now_us))

    def _act(self, actions: Sequence[DispatchAction]) -> None:
        for action in actions:
            match action:
                case SendPrompt(id=id, server=server):
                    self._ask(server, "prompt", id)
                case ProbeServer(server=server, probe=probe):
                    self._ask(server, probe, None)
                case CancelRequest(id=id):
                    del self._requests[id]
                case EndQuery(id=id, how=how):
                    self._end(id, how)

    def _ask(self, server: int, what: What, id: int | None) -> None:
        is_bad = id is not None and self.prompts[id][1]
        refused = self.rules[server](Request(what=what, now_us=self._now_us, is_bad=is_bad))
        if id is not None:
            self._requests[id] = self._seq + 1
        if refused is not None:
            event: DispatchEvent = RequestRefused(
                id=id,
                server=server,
                refused_as=KINDS[refused.kind],
                retry_after_us=refused.retry_after_us,
            )
            self._later(refused.delay_us, event)
        elif id is not None:
            request = self._later(LATENCY_US, RequestAccepted(id=id))
            end_us = self._now_us + LATENCY_US + WRITING_US
            heappush(self._due, (end_us, request, RequestEnded(id=id), request))
        else:
            took_us = LATENCY_US if what == "canary" else 20 * MS
            self._later(took_us, ProbePassed(server=server))

    def _later(self, delay_us: int, event: DispatchEvent) -> int:
        self._seq += 1
        heappush(self._due, (self._now_us + delay_us, self._seq, event, self._seq))
        return self._seq

    def _end(self, id: int, how: str) -> None:
        assert id not in self.ended_us, "a prompt ends twice"
        self.ended_us[id] = self._now_us
        self._requests.pop(id, None)
        figures, (arrival_us, is_bad, deadline_us) = self.figures, self.prompts[id]
        if how == "expired":
            assert deadline_us == self._now_us, "it expires on time"
            figures.expired += 1
        elif is_bad:
            figures.bad_ended += 1
            figures.bad_end_s = max(figures.bad_end_s, (self._now_us - arrival_us) / S)
        else:
            figures.answered += how == "answered"
            figures.failed += how != "answered"
            figures.last_answer_s = self._now_us / S
