"""The state machine that decides which prompts are sent where, retried, given up and expired.

`Dispatcher.step(event, now_us)` returns the actions to take, in order. Several servers share one
queue of prompts. Each has its health, its requests in flight, and what it has cached.

*Which prompt, which server.* A server with a free slot takes the prompt that `queue` chooses for
it. If several servers have a free slot, the prompt goes to the server that has most of it cached;
while the tokens of the prompt are not known, to the server that was warmed for it. Only the least
loaded server and servers with at most `LEAD_MAX` requests more may take it, unless these may not
have it now. Where nothing is known to be cached, the least loaded server takes it.

*Refusals.* A refused prompt is retried: at another server at once, at the same one after a pause of
its own. The refusal is the prompt's if the server accepted another request since it got the prompt;
else the server is doubted, and gets a canary. Refusals of a server that refuses its canary are
forgiven. A prompt is given up when it was tried too often or refused for too long, and each server
that takes prompts refused it; and when servers began too often to reply to it and did not answer.
A server that may have ended counts as having nothing cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.concurrency import next_concurrency
from generator.plan.dispatch_events import (
    CacheChanged,
    CancelRequest,
    DispatchAction,
    DispatchEvent,
    EndQuery,
    LoadSeen,
    ProbePassed,
    ProbeServer,
    PromptArrived,
    PromptCancelled,
    PromptHastened,
    PromptsRevoked,
    PromptTokenized,
    QueryEnd,
    ReplayCache,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    SendPrompt,
)
from generator.plan.health import RETRY_AFTER_US_MAX, DispatchServer
from generator.plan.kv_tree import KvTree, KvTreeEvent, ServerLost
from generator.plan.queue import PromptQueue, QueuedPrompt
from generator.plan.refusals import Refusals, RefusedPrompts
from generator.plan.slots import kept_servers, takers


class Dispatcher:
    """See the module. Not thread-safe: the caller locks. A step costs O(prompts * servers)."""

    def __init__(
        self,
        *,
        concurrency: int,
        prompts_max: int,
        tries_max: int,
        later_us_max: int,
        servers: int = 1,
        interactive_slots: int = 0,
        follows_caches: bool = False,
    ) -> None:
        """`follows_caches`: there are KV events; else prompts go in the order of arrival.

        `concurrency`: requests in flight at each server, until `LoadSeen`; `interactive_slots` of
        these are kept. `prompts_max`: prompts waiting or in flight. `tries_max`: tries after which
        a prompt is given up; `later_us_max`: the time since its first refusal.
        """
        self._interactive_slots = interactive_slots
        self._prompts_max = prompts_max
        self._tries_max = tries_max
        self._later_us_max = later_us_max
        self.servers = tuple(
            DispatchServer(concurrency=concurrency, tree=KvTree() if follows_caches else None)
            for _ in range(servers)
        )
        """To read."""
        self._refused = RefusedPrompts()
        self._queue = PromptQueue(
            *(CachedPrefixes(one.tree) for one in self.servers if one.tree is not None),
            servers=servers,
            refused=self._refused,
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
            is_free = server.state == "open" and requests < server.concurrency
            return is_free, cached, -requests

        return max(range(len(self.servers)), key=merit)

    def credit(self) -> int:
        """Returns how many more prompts may arrive: none unless a server is open."""
        return max(0, self._prompts_max - self.prompts) if self.is_open else 0

    def refused(self) -> list[tuple[int, Refusals]]:
        """Returns the waiting prompts that servers refuse while they accept others, by id.

        The one that was refused first comes first.
        """
        waiting = [(one.prompt.id, self._refused.of(one.prompt.refusal_key)) for one in self._queue]
        judged = [(id, refusals) for id, refusals in waiting if refusals.tries]
        return sorted(judged, key=lambda each: (each[1].since_us, each[0]))

    def wake_us(self) -> int | None:
        """Returns when a pause ends, a deadline passes or a retry is due. None: never."""
        entries = (*self._queue, *self._in_flight.values())
        deadlines = (queued.prompt.deadline_us for queued in entries)
        times = [time_us for time_us in deadlines if time_us is not None]
        for place, server in enumerate(self.servers):
            if server.state == "paused":
                times.append(server.paused_until_us)
            elif server.state != "open" and server.probe is None:
                times.append(server.canary_us)
            elif server.has_room:
                refusals = (self._refused.of(queued.prompt.refusal_key) for queued in self._queue)
                later = (one.not_before_us.get(place, 0) for one in refusals)
                times += [time_us for time_us in later if time_us > self._now_us]
        return min(times, default=None)

    def step(self, event: DispatchEvent, now_us: int) -> tuple[DispatchAction, ...]:
        """Takes one event and returns what to do now, in order.

        Events about prompts that have ended or were revoked are ignored.
        """
        actions: list[DispatchAction] = []
        self._now_us = now_us
        if isinstance(event, PromptArrived):
            assert self._known(event.prompt.id) is None, f"prompt {event.prompt.id} came twice"
            self._queue.add(QueuedPrompt(event.prompt))
        self._expire(actions)  # before the event: an answer at the deadline is too late
        self._follow_prompt(event, actions)
        self._follow_server(event, actions)
        for server in self.servers:
            server.advance(now_us)
        self._send(actions)
        return tuple(actions)

    def check_integrity(self) -> None:
        """Asserts what must be true between two steps."""
        assert not any(id in self._queue for id in self._in_flight), "waiting and in flight"
        for place, server in enumerate(self.servers):
            at_server = [id for id, one in self._in_flight.items() if one.server == place]
            assert server.in_flight == len(at_server), "miscounted requests"
            assert server.begun == sum(self._in_flight[id].is_begun for id in at_server)
            can_send = server.has_room and self._queue.may_go(place, self._now_us, self._kept())
            assert not can_send, "a prompt could be sent"

    def _follow_prompt(self, event: DispatchEvent, actions: list[DispatchAction]) -> None:
        """Takes an event about what is to become of a prompt."""
        match event:
            case PromptsRevoked(ids=ids):
                for id in sorted(ids):
                    self._drop(id, actions)
            case PromptCancelled(id=id):
                self._drop(id, actions, how="cancelled")
            case PromptHastened(id=id) if (queued := self._known(id)) is not None:
                queued.prompt = replace(
                    queued.prompt, priority=event.priority, due_us=event.deadline_us
                )
            case PromptTokenized(id=id) if (queued := self._known(id)) is not None:
                queued.prompt = replace(queued.prompt, token_ids=event.token_ids)
                self._queue.note_tokens(id)  # one in flight may come back

    def _follow_server(self, event: DispatchEvent, actions: list[DispatchAction]) -> None:
        """Takes an event about what a server did."""
        match event:
            case RequestAccepted(id=id) if (queued := self._in_flight.get(id)) is not None:
                self._accepted(queued, actions)
                self.servers[queued.server].begun += not queued.is_begun
                queued.is_begun = True
                queued.accepted += 1  # it says nothing of itself
            case RequestEnded(id=id) if id in self._in_flight:
                self._end(event, actions)
            case RequestRefused():
                self._refuse(event, actions)
            case ProbePassed(server=server):
                if self.servers[server].probe_passed(self._now_us):
                    self._judge(server, actions)
            case CacheChanged(server=server, event=change):
                self._change_cache(server, change, actions)
            case LoadSeen(server=server, waiting=waiting):
                one = self.servers[server]
                taken = one.in_flight + self._interactive_slots  # else a batch would raise nothing
                one.concurrency = next_concurrency(
                    one.concurrency, in_flight=taken, waiting=waiting
                )

    def _end(self, event: RequestEnded, actions: list[DispatchAction]) -> None:
        queued = self._take_back(event.id)
        server = self.servers[queued.server]
        self._accepted(queued, actions)
        if self._refused.forget(queued.prompt.refusal_key):
            self._queue.look_again((queued.prompt.refusal_key,))
        server.answered()
        expected = queued.cached_tokens
        if server.tree is not None and expected is not None and event.cached_tokens is not None:
            server.tree.check(expected, event.cached_tokens)
        for id in self._queue.take_equal(queued.prompt):  # while the stage has the text
            actions.append(EndQuery(id=id, how="answered", text_of=event.id))
        actions.append(EndQuery(id=event.id, how="answered"))

    def _accepted(self, queued: QueuedPrompt, actions: list[DispatchAction]) -> None:
        """Notes that a server began or completed an answer."""
        tries = self._refused.of(queued.prompt.refusal_key).tries.get(queued.server, 0)
        server = self.servers[queued.server]
        server.prompt_accepted(self._now_us, None if queued.is_begun else tries)
        self._judge(queued.server, actions)

    def _refuse(self, event: RequestRefused, actions: list[DispatchAction]) -> None:
        place, now_us, server = event.server, self._now_us, self.servers[event.server]
        if event.is_lost:
            self._change_cache(place, ServerLost(), actions)
        asked_us = min(event.retry_after_us or 0, RETRY_AFTER_US_MAX)
        if event.id is None and server.probe_refused(asked_us, now_us):
            self._queue.look_again(self._refused.forgive(place))
        if event.id is None or event.id not in self._in_flight:
            return
        queued = self._take_back(event.id)
        assert queued.server == place, "another server refuses the prompt"
        self._queue.add(queued)
        queued.paid += event.is_paid or queued.is_begun
        if queued.paid >= self._tries_max:
            self._drop(event.id, actions, how="given_up")
        if not server.is_open:
            return  # it was sent before the pause
        is_doubted = queued.is_begun or not server.has_accepted_since(queued.accepted, now_us)
        server.refused(is_busy=event.refused_as == "later", is_doubted=is_doubted)
        digest, sent_us = queued.prompt.refusal_key, queued.sent_us
        is_news = self._refused.refused(
            digest, place, event.refused_as, asked_us=asked_us, sent_us=sent_us, now_us=now_us
        )
        if is_news and not is_doubted:
            self._judge(place, actions)

    def _judge(self, place: int, actions: list[DispatchAction]) -> None:
        """A server accepted a request: what it refused since is the fault of the prompts."""
        for digest in self._refused.judge(place):
            if self._is_over(self._refused.of(digest)):
                for queued in tuple(self._queue):
                    if queued.prompt.refusal_key == digest:
                        self._drop(queued.prompt.id, actions, how="given_up")

    def _is_over(self, refusals: Refusals) -> bool:
        """Returns whether prompts with these refusals have failed."""
        servers, counts = self.servers, refusals.tries
        if not all(place in counts for place, one in enumerate(servers) if one.is_open):
            return False
        tries = sum(count / (1 + 2 * servers[place].noise) for place, count in counts.items())
        is_long = self._now_us - refusals.since_us >= self._later_us_max
        return is_long or tries >= self._tries_max + refusals.tries_more

    def _change_cache(self, server: int, event: KvTreeEvent, actions: list[DispatchAction]) -> None:
        if (tree := self.servers[server].tree) is not None:
            step = tree.step(event)
            self._queue.cache_changed(step, server)
            if step.replay_from is not None:
                actions.append(ReplayCache(server=server, replay_from=step.replay_from))

    def _expire(self, actions: list[DispatchAction]) -> None:
        for queued in (*self._in_flight.values(), *self._queue):
            if queued.prompt.is_late(self._now_us):
                self._drop(queued.prompt.id, actions, how="expired")

    def _drop(self, id: int, actions: list[DispatchAction], *, how: QueryEnd | None = None) -> None:
        """Takes a prompt away, wherever it is. It ends as `how` says; None: it was revoked."""
        is_known = self._queue.remove(id) is not None
        if id in self._in_flight:
            self._take_back(id)
            actions.append(CancelRequest(id=id))
            is_known = True
        if is_known and how is not None:
            actions.append(EndQuery(id=id, how=how))

    def _known(self, id: int) -> QueuedPrompt | None:
        return self._in_flight.get(id) or self._queue.get(id)

    def _take_back(self, id: int) -> QueuedPrompt:
        queued = self._in_flight.pop(id)
        self.servers[queued.server].in_flight -= 1
        self.servers[queued.server].begun -= queued.is_begun
        self._queue.came_back(queued.prompt)
        return queued

    def _send(self, actions: list[DispatchAction]) -> None:
        while queued := self._take_next():
            self._start(queued, actions)
        for place, server in enumerate(self.servers):
            if probe := server.next_probe(self._now_us, has_prompts=len(self._queue) > 0):
                actions.append(ProbeServer(server=place, probe=probe))
            if not server.has_room or server.is_proven:
                continue
            if queued := self._queue.take_probe(self._now_us, place, self._kept()):
                self._start(queued, actions)

    def _take_next(self) -> QueuedPrompt | None:
        kept = self._kept()
        taken = (self._queue.take_next(self._now_us, each, kept) for each in takers(self.servers))
        return next(filter(None, taken), None)

    def _kept(self) -> list[int]:
        return kept_servers(self.servers, self._in_flight.values(), self._interactive_slots)

    def _start(self, queued: QueuedPrompt, actions: list[DispatchAction]) -> None:
        id, server = queued.prompt.id, self.servers[queued.server]
        assert server.has_room, "too many requests in flight"
        queued.attempts += 1
        queued.is_begun, queued.sent_us = False, self._now_us
        queued.accepted = server.accepted
        server.in_flight += 1
        self._in_flight[id] = queued
        actions.append(SendPrompt(id=id, attempt=queued.attempts, server=queued.server))
