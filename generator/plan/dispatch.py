"""The state machine that decides which prompts are sent, retried, given up and expired.

`Dispatcher.step(event, now_us)` returns the actions to take, in order. The state of the server is
in `health`, the waiting prompts are in `queue`, and which of them is next is up to `order`.

A refused prompt is retried until the deadline of its query, or without end if it has none. A prompt
over which the server fails again and again, although it began to answer it or answers others, is
given up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from generator.plan.health import CHECK, ServerHealth, ServerState
from generator.plan.queue import Prompt, PromptQueue, QueuedPrompt


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchLimits:
    """Bounds of the dispatcher.

    `concurrency`: requests in flight. `prompts_max`: prompts waiting or in flight. `failures_max`:
    failures that a prompt may have caused before it is given up. Each broke an answer that had
    begun, or had others answered since the last one.
    """

    concurrency: int
    prompts_max: int
    backoff_us_min: int
    backoff_us_max: int
    retry_after_us_max: int
    failures_max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptArrived:
    """A prompt was taken in."""

    prompt: Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestAccepted:
    """The server began to answer this prompt."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEnded:
    """The server answered this prompt, or refused it for its content. Neither is retried."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRefused:
    """The server was busy, failed, hung or could not be reached. `id` None: for a check.

    `retry_after_us`: the pause that the server asked for. `suspect`: the prompt itself may be the
    cause.
    """

    id: int | None
    retry_after_us: int | None = None
    suspect: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckPassed:
    """The server answered a check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsRevoked:
    """The partitions of these prompts were assigned to another member."""

    ids: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptHastened:
    """A query with this priority and deadline waits for the answer to this prompt."""

    id: int
    priority: int
    deadline_us: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptCancelled:
    """The asker has withdrawn this query."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TimePassed:
    """The clock has moved; nothing else happened."""


DispatchEvent: TypeAlias = (
    PromptArrived
    | RequestAccepted
    | RequestEnded
    | RequestRefused
    | CheckPassed
    | PromptsRevoked
    | PromptHastened
    | PromptCancelled
    | TimePassed
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SendPrompt:
    """Send this prompt; it is the `attempt`th time, counted from 1."""

    id: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckServer:
    """Ask the server for its models, without a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequest:
    """Cancel this request in flight. Later events about it are ignored."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpireQuery:
    """Answer this query `expired`."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCancelled:
    """Answer this query `cancelled`."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUpQuery:
    """Answer this query `failed`: the server failed on it too often, though not on all."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliverAnswer:
    """Hand over the result of this request: it ended in time."""

    id: int


DispatchAction: TypeAlias = (
    SendPrompt
    | CheckServer
    | CancelRequest
    | ExpireQuery
    | AnswerCancelled
    | GiveUpQuery
    | DeliverAnswer
)


class Dispatcher:
    """See the module. Not thread-safe: the caller locks. A step costs O(prompts)."""

    def __init__(self, limits: DispatchLimits) -> None:
        self._limits = limits
        self._health = ServerHealth(
            backoff_us_min=limits.backoff_us_min,
            backoff_us_max=limits.backoff_us_max,
            retry_after_us_max=limits.retry_after_us_max,
        )
        self._queue = PromptQueue()
        self._in_flight: dict[int, QueuedPrompt] = {}
        self._answered = 0
        self._now_us = 0

    @property
    def server(self) -> ServerState:
        """The state of the server, as far as it is known."""
        return self._health.state

    @property
    def prompts(self) -> int:
        """Prompts waiting or in flight."""
        return len(self._queue) + len(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Prompts at the server."""
        return len(self._in_flight)

    def credit(self) -> int:
        """Returns how many more prompts may arrive: none unless the server is open."""
        return max(0, self._limits.prompts_max - self.prompts) if self.server == "open" else 0

    def wake_us(self) -> int | None:
        """Returns when a pause ends, a deadline passes or a retry is due. None: never."""
        entries = (*self._queue, *self._in_flight.values())
        deadlines = (queued.prompt.deadline_us for queued in entries)
        times = [time_us for time_us in deadlines if time_us is not None]
        if self.server == "paused":
            times.append(self._health.paused_until_us)
        if self.server == "open":
            later = (queued.not_before_us for queued in self._queue)
            times += [time_us for time_us in later if time_us > self._now_us]
        return min(times, default=None)

    def step(self, event: DispatchEvent, now_us: int) -> tuple[DispatchAction, ...]:
        """Takes one event and returns what to do now, in order.

        Events about prompts that have ended or were revoked are ignored.
        """
        actions: list[DispatchAction] = []
        self._now_us = now_us
        if isinstance(event, PromptArrived):
            id = event.prompt.id
            assert id not in self._queue and id not in self._in_flight, f"prompt {id} came twice"
            self._queue.add(QueuedPrompt(event.prompt))
        self._expire(actions)  # before the event: an answer at the deadline is too late
        match event:
            case RequestAccepted(id=id) if id in self._in_flight:
                self._health.accepted(id)
                self._in_flight[id].is_begun = True
            case RequestEnded(id=id) if id in self._in_flight:
                self._health.accepted(id)
                self._health.answered()
                self._answered += 1
                del self._in_flight[id]
                actions.append(DeliverAnswer(id=id))
            case RequestRefused():
                self._refuse(event, actions)
            case CheckPassed():
                self._health.accepted(CHECK)
            case PromptsRevoked(ids=ids):
                self._revoke(ids, actions)
            case PromptCancelled(id=id) if id in self._in_flight or id in self._queue:
                if self._queue.remove(id) is None:
                    self._cancel(id, actions)
                actions.append(AnswerCancelled(id=id))
            case PromptHastened():
                self._hasten(event)
        self._health.advance(now_us)
        self._send(actions)
        return tuple(actions)

    def check_integrity(self) -> None:
        """Asserts what must be true between two steps."""
        assert not any(id in self._queue for id in self._in_flight), "waiting and in flight"
        assert len(self._in_flight) <= self._limits.concurrency, "too many requests in flight"
        probe = self._health.probe
        assert probe is None or self.server == "probing", "a probe is out, but not needed"
        assert probe in (None, CHECK) or probe in self._in_flight, "the probe is not in flight"
        is_full = len(self._in_flight) == self._limits.concurrency
        can_send = self.server == "open" and not is_full
        assert not (can_send and self._queue.has_ready(self._now_us)), "a prompt could be sent"

    def _refuse(self, event: RequestRefused, actions: list[DispatchAction]) -> None:
        now_us = self._now_us
        if event.id is None:
            if self._health.probe == CHECK:
                self._health.refused(event.retry_after_us, now_us)
            return
        queued = self._in_flight.pop(event.id, None)
        if queued is None:
            return
        if event.suspect and self._failed_too_often(queued):
            actions.append(GiveUpQuery(id=event.id))
        else:
            self._queue.add(queued)
        self._health.refused(event.retry_after_us, now_us)
        if event.suspect:
            # It waits as long again after the pause. Otherwise it would be the first prompt at a
            # server that a check has just opened, and could pause the server for all others again.
            until_us = self._health.paused_until_us
            queued.not_before_us = until_us + (until_us - now_us)

    def _failed_too_often(self, queued: QueuedPrompt) -> bool:
        """Counts the first failure, broken answers, and failures with others answered since."""
        others = self._answered > queued.answered_at_failure
        if queued.failures == 0 or queued.is_begun or others:
            queued.failures += 1
        queued.answered_at_failure = self._answered
        return queued.failures > self._limits.failures_max

    def _revoke(self, ids: frozenset[int], actions: list[DispatchAction]) -> None:
        for id in sorted(ids):
            self._queue.remove(id)
            if id in self._in_flight:
                self._cancel(id, actions)

    def _hasten(self, event: PromptHastened) -> None:
        queued = self._in_flight.get(event.id) or self._queue.get(event.id)
        if queued is not None:
            queued.prompt = replace(
                queued.prompt, priority=event.priority, due_us=event.deadline_us
            )

    def _expire(self, actions: list[DispatchAction]) -> None:
        for entries in (tuple(self._in_flight.values()), tuple(self._queue)):
            for queued in entries:
                if queued.prompt.is_late(self._now_us):
                    id = queued.prompt.id
                    if self._queue.remove(id) is None:
                        self._cancel(id, actions)
                    actions.append(ExpireQuery(id=id))

    def _cancel(self, id: int, actions: list[DispatchAction]) -> None:
        del self._in_flight[id]
        self._health.cancelled(id)
        actions.append(CancelRequest(id=id))

    def _send(self, actions: list[DispatchAction]) -> None:
        has_room = len(self._in_flight) < self._limits.concurrency
        if self._health.needs_probe and not self._queue.has_probe():
            self._health.probe = CHECK
            actions.append(CheckServer())
        elif self._health.needs_probe and has_room:
            self._health.probe = self._start(self._queue.take_probe(), actions)
        while self.server == "open" and len(self._in_flight) < self._limits.concurrency:
            queued = self._queue.take_next(self._now_us)
            if queued is None:
                break
            self._start(queued, actions)

    def _start(self, queued: QueuedPrompt, actions: list[DispatchAction]) -> int:
        id = queued.prompt.id
        queued.attempts += 1
        queued.is_begun = False
        self._in_flight[id] = queued
        actions.append(SendPrompt(id=id, attempt=queued.attempts))
        return id
