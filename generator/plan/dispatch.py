"""The state machine that decides which prompts are sent where, retried, given up and expired.

`Dispatcher.step(event, now_us)` returns the actions to take, in order. Several servers share one
queue of prompts. Each has its health, its requests in flight, and what it has cached.

*Which prompt, which server.* A server with a free slot takes the prompt that `queue` chooses for
it. If several servers have a free slot, the prompt goes to the server that has most of it cached;
while the blocks of the prompt are not known, to the server that was warmed for it. Only the least
loaded server and servers with at most `LEAD_MAX` requests more may take it. Where nothing is known
to be cached, the least loaded server takes it.

*Failures.* A refused prompt is retried until the deadline of its query, or without end if the query
has no deadline. It is retried at once if another server is open. A prompt is given up when servers
fail on it too often, although they reply to it or answer other prompts. A server that may
have ended counts as having nothing cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.dispatch_events import (
    AnswerCancelled,
    CacheChanged,
    CancelRequest,
    CheckPassed,
    CheckServer,
    ConcurrencyChanged,
    DeliverAnswer,
    DispatchAction,
    DispatchEvent,
    ExpireQuery,
    GiveUpQuery,
    PromptArrived,
    PromptCancelled,
    PromptHastened,
    PromptsRevoked,
    PromptTokenized,
    ReplayCache,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    SendPrompt,
)
from generator.plan.health import CHECK, ServerHealth
from generator.plan.kv_tree import BlockDigest, KvTree, KvTreeEvent, ServerLost
from generator.plan.queue import PromptQueue, QueuedPrompt, ServerCache

LEAD_MAX = 1
"""A server takes the prompt of which it has most cached only if it has at most so many requests
more than the least loaded server. With a higher value, few servers get nearly all prompts while the
load is low."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchLimits:
    """Bounds of the dispatcher.

    `concurrency`: requests in flight at each server, until `ConcurrencyChanged`. `prompts_max`:
    prompts waiting or in flight. `tries_max`: failed requests after which a prompt is given up. A
    failure counts if the server began to reply, or answered other prompts since the last failure.
    """

    concurrency: int
    prompts_max: int
    backoff_us_min: int
    backoff_us_max: int
    retry_after_us_max: int
    tries_max: int


OrderName = Literal["arrival", "cached_prefix"]


@dataclass(kw_only=True, slots=True)
class _LlmServer:
    """A server. `in_flight`: its requests. `answered`: the prompts that it has answered."""

    health: ServerHealth
    concurrency: int
    tree: KvTree | None
    in_flight: int = 0
    answered: int = 0

    @property
    def is_open(self) -> bool:
        return self.health.state == "open"

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.concurrency

    def load(self, without: int = 0) -> float:
        """The share of its slots that are taken, if `without` of its requests are not counted."""
        return (self.in_flight - without) / self.concurrency


class Dispatcher:
    """See the module. Not thread-safe: the caller locks. A step costs O(prompts * servers)."""

    def __init__(
        self, limits: DispatchLimits, *, servers: int = 1, order: OrderName | None = None
    ) -> None:
        """`order` None: KV events are not followed, and prompts go in the order of arrival.

        The digests of a prompt are made once for all servers. So one with blocks of another size
        counts as having nothing cached, because none of its blocks has such a digest.
        """
        self._limits = limits
        self._servers = tuple(
            _LlmServer(
                health=ServerHealth(
                    backoff_us_min=limits.backoff_us_min,
                    backoff_us_max=limits.backoff_us_max,
                    retry_after_us_max=limits.retry_after_us_max,
                ),
                concurrency=limits.concurrency,
                tree=None if order is None else KvTree(),
            )
            for _ in range(servers)
        )
        known = [CachedPrefixes(one.tree) for one in self._servers if one.tree is not None]
        self._queue = PromptQueue(
            *(
                ServerCache(prefixes=one, choose=one.choose if order == "cached_prefix" else None)
                for one in known
            )
        )
        self._in_flight: dict[int, QueuedPrompt] = {}
        self._now_us = 0

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self._servers)

    @property
    def is_open(self) -> bool:
        """Whether a server takes prompts."""
        return any(server.is_open for server in self._servers)

    def health(self, server: int) -> ServerHealth:
        """Returns the health of a server, to read."""
        return self._servers[server].health

    def tree(self, server: int) -> KvTree | None:
        """Returns what a server has cached, to read; None if its KV events are not followed."""
        return self._servers[server].tree

    def concurrency(self, server: int) -> int:
        """Returns how many requests a server gets at once."""
        return self._servers[server].concurrency

    def in_flight_at(self, server: int) -> int:
        """Returns the prompts at a server."""
        return self._servers[server].in_flight

    @property
    def prompts(self) -> int:
        """Prompts waiting or in flight."""
        return len(self._queue) + len(self._in_flight)

    @property
    def waiting(self) -> int:
        """Prompts that are at no server."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Prompts at the servers."""
        return len(self._in_flight)

    def server_to_warm(self, digests: Sequence[BlockDigest], warm_ups: Sequence[int]) -> int:
        """Returns the server for a warm-up of these blocks; `warm_ups`: those at each server.

        Among the open servers with a free slot, this is the server that has most of these blocks
        cached; if equal, the server with the fewest requests. If no slot is free, it is any server.
        """

        def merit(place: int) -> tuple[bool, int, int]:
            server = self._servers[place]
            requests = server.in_flight + warm_ups[place]
            cached = 0 if server.tree is None else server.tree.cached_blocks(digests)
            return server.is_open and requests < server.concurrency, cached, -requests

        return max(range(len(self._servers)), key=merit)

    def credit(self) -> int:
        """Returns how many more prompts may arrive: none unless a server is open."""
        return max(0, self._limits.prompts_max - self.prompts) if self.is_open else 0

    def wake_us(self) -> int | None:
        """Returns when a pause ends, a deadline passes or a retry is due. None: never."""
        entries = (*self._queue, *self._in_flight.values())
        deadlines = (queued.prompt.deadline_us for queued in entries)
        times = [time_us for time_us in deadlines if time_us is not None]
        healths = (server.health for server in self._servers)
        times += [health.paused_until_us for health in healths if health.state == "paused"]
        if self.is_open:
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
        self._follow_prompt(event, actions)
        self._follow_server(event, actions)
        for server in self._servers:
            server.health.advance(now_us)
        self._send(actions)
        return tuple(actions)

    def check_integrity(self) -> None:
        """Asserts what must be true between two steps."""
        assert not any(id in self._queue for id in self._in_flight), "waiting and in flight"
        has_ready = self._queue.has_ready(self._now_us)
        for place, server in enumerate(self._servers):
            at_server = [id for id, one in self._in_flight.items() if one.server == place]
            assert server.in_flight == len(at_server), "miscounted requests"
            probe = server.health.probe
            assert probe is None or server.health.state == "probing", "a probe is not needed"
            assert probe in (None, CHECK) or probe in at_server, "the probe is not in flight"
            can_send = server.is_open and server.has_room
            assert not (can_send and has_ready), "a prompt could be sent"

    def _follow_prompt(self, event: DispatchEvent, actions: list[DispatchAction]) -> None:
        """Takes an event about what is to become of a prompt."""
        match event:
            case PromptsRevoked(ids=ids):
                self._revoke(ids, actions)
            case PromptCancelled(id=id) if id in self._in_flight or id in self._queue:
                if self._queue.remove(id) is None:
                    self._cancel(id, actions)
                actions.append(AnswerCancelled(id=id))
            case PromptHastened():
                self._hasten(event)
            case PromptTokenized(id=id, blocks=blocks):
                self._queue.set_blocks(id, blocks)
                if (queued := self._in_flight.get(id)) is not None:  # it may come back
                    queued.prompt = replace(queued.prompt, blocks=blocks)

    def _follow_server(self, event: DispatchEvent, actions: list[DispatchAction]) -> None:
        """Takes an event about what a server did."""
        match event:
            case RequestAccepted(id=id) if (queued := self._in_flight.get(id)) is not None:
                self._servers[queued.server].health.accepted(id)
                queued.is_begun = True
            case RequestEnded(id=id) if id in self._in_flight:
                self._end(event, actions)
            case RequestRefused():
                self._refuse(event, actions)
            case CheckPassed(server=server):
                self._servers[server].health.accepted(CHECK)
            case CacheChanged(server=server, event=change):
                self._change_cache(server, change, actions)
            case ConcurrencyChanged(server=server, concurrency=concurrency):
                self._servers[server].concurrency = concurrency

    def _end(self, event: RequestEnded, actions: list[DispatchAction]) -> None:
        queued = self._take_back(event.id)
        server = self._servers[queued.server]
        server.health.accepted(event.id)
        server.health.answered()
        server.answered += 1
        expected = queued.cached_tokens
        if server.tree is not None and expected is not None and event.cached_tokens is not None:
            server.tree.check(expected, event.cached_tokens)
        actions.append(DeliverAnswer(id=event.id))

    def _refuse(self, event: RequestRefused, actions: list[DispatchAction]) -> None:
        now_us, health = self._now_us, self._servers[event.server].health
        if event.is_lost:
            self._change_cache(event.server, ServerLost(), actions)
        if event.id is None:
            if health.probe == CHECK:
                health.refused(event.retry_after_us, now_us)
            return
        if event.id not in self._in_flight:
            return
        queued = self._take_back(event.id)
        assert queued.server == event.server, "another server refuses the prompt"
        may_be_at_fault = event.suspect or event.is_paid
        if may_be_at_fault and self._failed_too_often(queued, is_paid=event.is_paid):
            actions.append(GiveUpQuery(id=event.id))
        else:
            self._queue.add(queued)
        if health.probe in (None, event.id):  # else the probe, which is younger, will say
            health.refused(event.retry_after_us, now_us)
        if event.suspect and not (queued.failures == 1 and self.is_open):
            # It waits as long again after the pause. Otherwise it would be the first prompt at a
            # server that a check has just opened, and could pause the server for all others again.
            # After its first failure another server may try the prompt at once.
            until_us = health.paused_until_us
            queued.not_before_us = until_us + (until_us - now_us)

    def _failed_too_often(self, queued: QueuedPrompt, *, is_paid: bool) -> bool:
        """Counts the first failure, begun replies, and failures with others answered since."""
        answered = self._servers[queued.server].answered
        others = answered > queued.answered_at_failure.get(queued.server, 0)
        if queued.failures == 0 or queued.is_begun or is_paid or others:
            queued.failures += 1
        queued.answered_at_failure[queued.server] = answered
        return queued.failures >= self._limits.tries_max

    def _change_cache(self, server: int, event: KvTreeEvent, actions: list[DispatchAction]) -> None:
        tree = self._servers[server].tree
        if tree is None:
            return
        step = tree.step(event)
        self._queue.cache_changed(step, server)
        if step.replay_from is not None:
            actions.append(ReplayCache(server=server, replay_from=step.replay_from))

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
        queued = self._take_back(id)
        self._servers[queued.server].health.cancelled(id)
        actions.append(CancelRequest(id=id))

    def _take_back(self, id: int) -> QueuedPrompt:
        queued = self._in_flight.pop(id)
        self._servers[queued.server].in_flight -= 1
        return queued

    def _send(self, actions: list[DispatchAction]) -> None:
        for place, server in enumerate(self._servers):
            if server.health.needs_probe:
                # A prompt is no probe while another server takes it.
                if self.is_open or not self._queue.has_probe():
                    server.health.probe = CHECK
                    actions.append(CheckServer(server=place))
                elif server.has_room:
                    server.health.probe = self._start(self._queue.take_probe(place), actions)
        while takers := self._takers():
            queued = self._queue.take_next(self._now_us, takers)
            if queued is None:
                break
            self._start(queued, actions)

    def _takers(self) -> Sequence[int]:
        """Returns the servers that may take the next prompt, the least loaded first."""
        places = [place for place, one in enumerate(self._servers) if one.is_open and one.has_room]
        if not places:
            return ()
        least = min(self._servers[place].load() for place in places)
        fit = (one for one in places if self._servers[one].load(LEAD_MAX) <= least)
        return sorted(fit, key=lambda one: self._servers[one].load())

    def _start(self, queued: QueuedPrompt, actions: list[DispatchAction]) -> int:
        id = queued.prompt.id
        server = self._servers[queued.server]
        assert server.has_room, "too many requests in flight"
        queued.attempts += 1
        queued.is_begun = False
        server.in_flight += 1
        self._in_flight[id] = queued
        actions.append(SendPrompt(id=id, attempt=queued.attempts, server=queued.server))
        return id
