"""The state machine that decides which prompts are sent where, retried, given up and expired.

`Dispatcher.step(event, now_us)` returns the actions to take, in order. Several servers share one
queue of prompts. Each has its health, its requests in flight, and what it has cached.

*Which prompt, which server.* A server with a free slot takes the prompt that `queue` chooses for
it. If several servers have a free slot, the prompt goes to the server that has most of it cached;
while the tokens of the prompt are not known, to the server that was warmed for it. Only the least
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

from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.concurrency import next_concurrency
from generator.plan.dispatch_events import (
    CacheChanged,
    CancelRequest,
    CheckPassed,
    CheckServer,
    DispatchAction,
    DispatchEvent,
    EndQuery,
    LoadSeen,
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
from generator.plan.kv_tree import KvTree, KvTreeEvent, ServerLost
from generator.plan.queue import PromptQueue, QueuedPrompt

LEAD_MAX = 1
"""A server takes the prompt of which it has most cached only if it has at most so many requests
more than the least loaded server. With a higher value, few servers get nearly all prompts while the
load is low."""


@dataclass(kw_only=True, slots=True)
class DispatchServer:
    """A server, as the dispatcher knows it.

    `concurrency`: requests that it gets at once; `in_flight`: those that it has. `answered`: the
    prompts that it has answered. `tree`: what it has cached; None: there are no KV events.
    """

    health: ServerHealth
    concurrency: int
    tree: KvTree | None
    in_flight: int = 0
    answered: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it takes prompts."""
        return self.health.state == "open"

    @property
    def has_room(self) -> bool:
        """Whether it may get one more request."""
        return self.in_flight < self.concurrency

    def load(self, without: int = 0) -> float:
        """The share of its slots that are taken, if `without` of its requests are not counted."""
        return (self.in_flight - without) / self.concurrency


class Dispatcher:
    """See the module. Not thread-safe: the caller locks. A step costs O(prompts * servers)."""

    def __init__(
        self,
        *,
        concurrency: int,
        prompts_max: int,
        tries_max: int,
        servers: int = 1,
        follows_caches: bool = False,
    ) -> None:
        """`follows_caches`: there are KV events; else prompts go in the order of arrival.

        `concurrency`: requests in flight at each server, until `LoadSeen`. `prompts_max`:
        prompts waiting or in flight. `tries_max`: failed requests after which a prompt is given up.
        A failure counts if the server began to reply, or answered other prompts since the last one.
        """
        self._prompts_max = prompts_max
        self._tries_max = tries_max
        self.servers = tuple(
            DispatchServer(
                health=ServerHealth(),
                concurrency=concurrency,
                tree=KvTree() if follows_caches else None,
            )
            for _ in range(servers)
        )
        """To read."""
        self._queue = PromptQueue(
            *(CachedPrefixes(one.tree) for one in self.servers if one.tree is not None)
        )
        self._in_flight: dict[int, QueuedPrompt] = {}
        self._now_us = 0

    @property
    def is_open(self) -> bool:
        """Whether a server takes prompts."""
        return any(server.is_open for server in self.servers)

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

    def server_to_warm(self, token_ids: Sequence[int], warm_ups: Sequence[int]) -> int:
        """Returns the server for a warm-up of these tokens; `warm_ups`: those at each server.

        Among the open servers with a free slot, this is the server that has most of these tokens
        cached; if equal, the server with the fewest requests. If no slot is free, it is any server.
        """

        def merit(place: int) -> tuple[bool, int, int]:
            server = self.servers[place]
            requests = server.in_flight + warm_ups[place]
            cached = 0 if server.tree is None else server.tree.cached_of(token_ids)
            return server.is_open and requests < server.concurrency, cached, -requests

        return max(range(len(self.servers)), key=merit)

    def credit(self) -> int:
        """Returns how many more prompts may arrive: none unless a server is open."""
        return max(0, self._prompts_max - self.prompts) if self.is_open else 0

    def wake_us(self) -> int | None:
        """Returns when a pause ends, a deadline passes or a retry is due. None: never."""
        entries = (*self._queue, *self._in_flight.values())
        deadlines = (queued.prompt.deadline_us for queued in entries)
        times = [time_us for time_us in deadlines if time_us is not None]
        healths = (server.health for server in self.servers)
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
        for server in self.servers:
            server.health.advance(now_us)
        self._send(actions)
        return tuple(actions)

    def check_integrity(self) -> None:
        """Asserts what must be true between two steps."""
        assert not any(id in self._queue for id in self._in_flight), "waiting and in flight"
        has_ready = self._queue.has_ready(self._now_us)
        for place, server in enumerate(self.servers):
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
                actions.append(EndQuery(id=id, how="cancelled"))
            case PromptHastened():
                self._hasten(event)
            case PromptTokenized(id=id, token_ids=token_ids):
                self._queue.set_tokens(id, token_ids)
                if (queued := self._in_flight.get(id)) is not None:  # it may come back
                    queued.prompt = replace(queued.prompt, token_ids=token_ids)

    def _follow_server(self, event: DispatchEvent, actions: list[DispatchAction]) -> None:
        """Takes an event about what a server did."""
        match event:
            case RequestAccepted(id=id) if (queued := self._in_flight.get(id)) is not None:
                self.servers[queued.server].health.accepted(id)
                queued.is_begun = True
            case RequestEnded(id=id) if id in self._in_flight:
                self._end(event, actions)
            case RequestRefused():
                self._refuse(event, actions)
            case CheckPassed(server=server):
                self.servers[server].health.accepted(CHECK)
            case CacheChanged(server=server, event=change):
                self._change_cache(server, change, actions)
            case LoadSeen(server=server, waiting=waiting):
                one = self.servers[server]
                one.concurrency = next_concurrency(
                    one.concurrency, in_flight=one.in_flight, waiting=waiting
                )

    def _end(self, event: RequestEnded, actions: list[DispatchAction]) -> None:
        queued = self._take_back(event.id)
        server = self.servers[queued.server]
        server.health.accepted(event.id)
        server.health.answered()
        server.answered += 1
        expected = queued.cached_tokens
        if server.tree is not None and expected is not None and event.cached_tokens is not None:
            server.tree.check(expected, event.cached_tokens)
        for id in self._queue.take_equal(queued.prompt):  # while the stage has the text
            actions.append(EndQuery(id=id, how="answered", text_of=event.id))
        actions.append(EndQuery(id=event.id, how="answered"))

    def _refuse(self, event: RequestRefused, actions: list[DispatchAction]) -> None:
        now_us, health = self._now_us, self.servers[event.server].health
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
            actions.append(EndQuery(id=event.id, how="given_up"))
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
        answered = self.servers[queued.server].answered
        others = answered > queued.answered_at_failure.get(queued.server, 0)
        if queued.failures == 0 or queued.is_begun or is_paid or others:
            queued.failures += 1
        queued.answered_at_failure[queued.server] = answered
        return queued.failures >= self._tries_max

    def _change_cache(self, server: int, event: KvTreeEvent, actions: list[DispatchAction]) -> None:
        tree = self.servers[server].tree
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
                    actions.append(EndQuery(id=id, how="expired"))

    def _cancel(self, id: int, actions: list[DispatchAction]) -> None:
        queued = self._take_back(id)
        self.servers[queued.server].health.cancelled(id)
        actions.append(CancelRequest(id=id))

    def _take_back(self, id: int) -> QueuedPrompt:
        queued = self._in_flight.pop(id)
        self.servers[queued.server].in_flight -= 1
        self._queue.came_back(queued.prompt)
        return queued

    def _send(self, actions: list[DispatchAction]) -> None:
        for place, server in enumerate(self.servers):
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
        places = [place for place, one in enumerate(self.servers) if one.is_open and one.has_room]
        if not places:
            return ()
        least = min(self.servers[place].load() for place in places)
        fit = (one for one in places if self.servers[one].load(LEAD_MAX) <= least)
        return sorted(fit, key=lambda one: self.servers[one].load())

    def _start(self, queued: QueuedPrompt, actions: list[DispatchAction]) -> int:
        id = queued.prompt.id
        server = self.servers[queued.server]
        assert server.has_room, "too many requests in flight"
        queued.attempts += 1
        queued.is_begun = False
        server.in_flight += 1
        self._in_flight[id] = queued
        actions.append(SendPrompt(id=id, attempt=queued.attempts, server=queued.server))
        return id
