"""The state machine that decides which prompts are sent, held back, tried again, given up and
expired.

`Dispatcher.step(event, now_us)` returns the actions to take, in order. The server is `open`
(prompts flow, at most `concurrency` at once), `paused` (it refused; nothing is sent until the pause
ends) or `probing` (the pause is over; one request finds out whether the server takes work again: a
waiting prompt, or a check where none waits that is above suspicion). It begins as `probing`:
nothing is consumed for a server that has not answered once.

A refusal is retried without end, until the deadline of its query, if it has one: nothing is lost to
a server that is down. The exception is a prompt that the server breaks off over again and again
while it answers others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from generator.plan.order import ArrivalOrder, Order, Prompt

Server = Literal["open", "paused", "probing"]

OLDEST_EVERY = 16
"""Every so many sends go to whoever has waited longest: no priority keeps anybody waiting for
ever.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of the dispatcher: requests at once, prompts in hand (waiting or running), pauses, and
    failures of one prompt.

    `failures_max`: how often one prompt may fail in a way that it may be to blame for, each time
    with others answered meanwhile, before it is given up.
    """

    concurrency: int
    in_hand_max: int
    backoff_us_min: int
    backoff_us_max: int
    retry_after_us_max: int
    failures_max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """A prompt came in."""

    prompt: Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The server began to answer this prompt: it takes work."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A request is over for good: answered, or refused for its own fault. Either way the server
    took it.
    """

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """The server did not do its work: it refused, broke off, hung, could not be reached. `id` None:
    the check.

    `retry_after_us`: how long it asked to be left alone. `suspect`: this prompt may itself be the
    cause (the server broke off in the middle, rather than saying that it is busy).
    """

    id: int | None
    retry_after_us: int | None = None
    suspect: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckPassed:
    """The server answered a check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """These prompts are somebody else's now."""

    ids: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticked:
    """Time went by."""


Event: TypeAlias = Arrived | Accepted | Ended | Refused | CheckPassed | Revoked | Ticked


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """Send this prompt; it is the `attempt`th time, counted from 1."""

    id: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Ask the server whether it is there, without a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Break off this running request. Nothing further is expected of it."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Expire:
    """Answer this query `expired`; it has been sent `attempts` times."""

    id: int
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Answer this query `failed`: the server broke off `attempts` times over it while it answered
    others.
    """

    id: int
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Deliver:
    """Hand over what this request came to: it ended in time, at the `attempts`th try."""

    id: int
    attempts: int


Action: TypeAlias = Send | Check | Cancel | Expire | GiveUp | Deliver


@dataclass(slots=True)
class _Entry:
    prompt: Prompt
    attempts: int = 0
    failures: int = 0
    ended_at_failure: int = 0
    not_before_us: int = 0


class Dispatcher:
    """See the module. Not thread-safe; its caller holds a lock. Each step costs O(prompts in
    hand).
    """

    def __init__(self, limits: Limits, order: Order | None = None) -> None:
        self._limits = limits
        self._order: Order = order if order is not None else ArrivalOrder()
        self._waiting: dict[int, _Entry] = {}
        self._running: dict[int, _Entry] = {}
        self._server: Server = "probing"
        self._probe: int | Literal["check"] | None = None
        self._refusals_in_row = 0
        self._paused_until_us = 0
        self._ended = 0
        self._sends = 0
        self._now_us = 0

    @property
    def server(self) -> Server:
        """What is believed of the server."""
        return self._server

    @property
    def in_hand(self) -> int:
        """Prompts waiting or running."""
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> int:
        """Prompts at the server."""
        return len(self._running)

    def credit(self) -> int:
        """Returns how many more prompts may arrive: none unless the server is open."""
        return max(0, self._limits.in_hand_max - self.in_hand) if self._server == "open" else 0

    def wake_us(self) -> int | None:
        """Returns when time alone will change something: the end of a pause, or the next deadline.
        None: never.
        """
        entries = (*self._waiting.values(), *self._running.values())
        times = [
            entry.prompt.deadline_us for entry in entries if entry.prompt.deadline_us is not None
        ]
        if self._server == "paused":
            times.append(self._paused_until_us)
        if self._server == "open":
            later = (entry.not_before_us for entry in self._waiting.values())
            times += [time_us for time_us in later if time_us > self._now_us]
        return min(times, default=None)

    def step(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Takes one event and returns what to do now, in order. Events about prompts that are gone
        change nothing.
        """
        actions: list[Action] = []
        self._now_us = now_us
        if isinstance(event, Arrived):
            prompt = event.prompt
            assert prompt.id not in self._waiting and prompt.id not in self._running, (
                f"prompt {prompt.id} came twice"
            )
            self._waiting[prompt.id] = _Entry(prompt)
        self._expire(now_us, actions)  # first, so that what ends late is expired
        match event:
            case Accepted(id=id):
                self._took(id)
            case Ended(id=id):
                self._end(id, actions)
            case Refused():
                self._refuse(event, now_us, actions)
            case CheckPassed():
                self._took("check")
            case Revoked(ids=ids):
                self._revoke(ids, actions)
            case Arrived() | Ticked():
                pass
        if self._server == "paused" and now_us >= self._paused_until_us:
            self._server, self._probe = "probing", None
        self._send(actions)
        return tuple(actions)

    def check_integrity(self) -> None:
        """Asserts what must hold between two steps."""
        assert not self._waiting.keys() & self._running.keys(), (
            "a prompt is both waiting and running"
        )
        assert len(self._running) <= self._limits.concurrency, "more requests at once than allowed"
        assert self._probe is None or self._server == "probing", (
            "a probe is out though the server is not being probed"
        )
        assert self._probe in (None, "check") or self._probe in self._running, (
            "the probe is not running"
        )
        assert (
            self._server != "open"
            or not self._sendable()
            or len(self._running) == self._limits.concurrency
        ), "a prompt waits though it could be sent"

    def _took(self, id: int | Literal["check"]) -> None:
        """The server took work. What it took before or during a pause says nothing about now; only
        the probe does.
        """
        if self._server == "probing" and self._probe == id:
            self._server, self._probe = "open", None
        if self._server == "open" and id in self._running:
            # Only a prompt ends the backoff: a server may list its models and still refuse to
            # generate.
            self._refusals_in_row = 0

    def _end(self, id: int, actions: list[Action]) -> None:
        self._took(id)
        entry = self._running.pop(id, None)
        if entry is not None:
            self._ended += 1
            actions.append(Deliver(id=id, attempts=entry.attempts))

    def _refuse(self, event: Refused, now_us: int, actions: list[Action]) -> None:
        entry: _Entry | None = None
        if event.id is None:
            if self._probe != "check":
                return
        else:
            entry = self._running.pop(event.id, None)
            if entry is None:
                return
            if event.suspect and self._failed_again(entry):
                actions.append(GiveUp(id=event.id, attempts=entry.attempts))
            else:
                self._waiting[event.id] = entry
        self._pause(event.retry_after_us, now_us)
        if entry is not None and event.suspect:
            # It waits as long again after the pause: else it would be the first at a server that a
            # check has just opened, and might close it to all others, those to come included, time
            # and again.
            entry.not_before_us = self._paused_until_us + (self._paused_until_us - now_us)

    def _failed_again(self, entry: _Entry) -> bool:
        """Counts a failure that the prompt may be to blame for: the first, and each with others
        answered since the last.
        """
        if entry.failures == 0 or self._ended > entry.ended_at_failure:
            entry.failures += 1
        entry.ended_at_failure = self._ended
        return entry.failures > self._limits.failures_max

    def _pause(self, retry_after_us: int | None, now_us: int) -> None:
        """Pauses for min * 2^(refusals in a row - 1), within the maximum, or for as long as the
        server asked.

        Requests that were out together and fail together count once: a refusal during a pause only
        lengthens it, where the server says so.
        """
        asked_us = min(retry_after_us or 0, self._limits.retry_after_us_max)
        if self._server == "paused":
            self._paused_until_us = max(self._paused_until_us, now_us + asked_us)
            return
        self._refusals_in_row += 1
        doublings = min(
            self._refusals_in_row - 1, 32
        )  # keeps the number small; the maximum was reached long before
        backoff_us = min(self._limits.backoff_us_min << doublings, self._limits.backoff_us_max)
        self._server, self._probe = "paused", None
        self._paused_until_us = now_us + max(backoff_us, asked_us)

    def _revoke(self, ids: frozenset[int], actions: list[Action]) -> None:
        for id in sorted(ids):
            self._waiting.pop(id, None)
            if self._running.pop(id, None) is not None:
                actions.append(Cancel(id=id))
                self._lost_probe(id)

    def _expire(self, now_us: int, actions: list[Action]) -> None:
        for entries in (self._running, self._waiting):
            for id in [id for id, entry in entries.items() if _is_late(entry.prompt, now_us)]:
                if entries is self._running:
                    actions.append(Cancel(id=id))
                    self._lost_probe(id)
                actions.append(Expire(id=id, attempts=entries.pop(id).attempts))

    def _lost_probe(self, id: int) -> None:
        """A probe that is broken off found nothing out: the next prompt, or a check, takes its
        place.
        """
        if self._probe == id:
            self._probe = None

    def _send(self, actions: list[Action]) -> None:
        if self._server == "probing" and self._probe is None:
            # A prompt that may itself be the cause finds nothing out about the server; a check is
            # asked instead.
            candidates = [entry.prompt for entry in self._waiting.values() if entry.failures == 0]
            if not candidates:
                self._probe = "check"
                actions.append(Check())
            elif len(self._running) < self._limits.concurrency:
                self._probe = self._order.first(candidates).id
                self._start(self._probe, actions)
        while self._server == "open" and len(self._running) < self._limits.concurrency:
            sendable = self._sendable()
            if not sendable:
                break
            self._start(self._next(sendable).id, actions)

    def _sendable(self) -> list[Prompt]:
        return [
            entry.prompt for entry in self._waiting.values() if entry.not_before_us <= self._now_us
        ]

    def _next(self, sendable: list[Prompt]) -> Prompt:
        if (self._sends + 1) % OLDEST_EVERY == 0:
            return min(sendable, key=lambda prompt: (prompt.arrival_us, prompt.id))
        return self._order.first(sendable)

    def _start(self, id: int, actions: list[Action]) -> None:
        self._sends += 1
        entry = self._waiting.pop(id)
        entry.attempts += 1
        self._running[id] = entry
        actions.append(Send(id=id, attempt=entry.attempts))


def _is_late(prompt: Prompt, now_us: int) -> bool:
    return prompt.deadline_us is not None and now_us >= prompt.deadline_us
