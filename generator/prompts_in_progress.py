"""The prompts in progress: what the dispatcher decides about them, and their requests.

The polling thread and the event loop (`generator.requests_in_flight`) share the dispatcher under a
lock. The event loop carries out the actions, in the order in which the dispatcher returned them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog

from carpool.clock import Clock
from carpool.telemetry.metrics import Metrics
from generator.caches import ServerCaches
from generator.llm.protocol import LlmRefusal
from generator.llm.servers import LlmServers
from generator.outcomes import Outcomes
from generator.plan import dispatch_events as events
from generator.plan.concurrency import FIRST
from generator.plan.dispatch import Dispatcher
from generator.plan.kv_tree import KvTreeEvent
from generator.plan.queue import Prompt
from generator.plan.warm_ups import Auto, EngineLoad, Likely, NoSpeculation, SpeculationPolicy
from generator.prompts import PreparedPrompt
from generator.query_in_progress import QueryInProgress
from generator.requests_in_flight import RequestsInFlight
from generator.server_requests import ServerRequests
from generator.settings import GeneratorSettings, LlmSettings
from generator.warmer import Warmer
from schemas.headers import tenant_of
from schemas.query import finished_steps
from schemas.retrieval import Retrieval

log = structlog.get_logger()

WAKE_US = 50_000
"""Longest wait between two ticks while there is work: a pause may begin between two ticks."""
NOTES_MAX, NOTE_ID_CHARS_MAX = 3, 100
LOOK_S = 0.5
"""With concurrency 0: the time between two looks at a server."""


class PromptsInProgress:
    """See the module.

    `is_draining`: the service stops. `warmer`: for calls that `soon` makes on the event loop.
    """

    def __init__(
        self,
        servers: LlmServers,
        settings: GeneratorSettings,
        llm: LlmSettings,
        outcomes: Outcomes,
        prepare: Callable[[Retrieval], PreparedPrompt | None],
        charge: Callable[[int, Exception], None],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`prepare`: see `Warmer`. `charge` ends the try of a unit after an unexpected error."""
        self._servers = servers
        self._outcomes = outcomes
        self._charge = charge
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        endpoints = llm.kv_endpoints() if len(servers) else ()
        self._dispatcher = Dispatcher(
            concurrency=settings.concurrency or FIRST,
            prompts_max=settings.prompts_max(len(servers)),
            tries_max=llm.tries_max,
            later_us_max=llm.later_ms_max * 1_000,
            servers=len(servers),
            interactive_slots=settings.interactive_slots,
            follows_caches=bool(endpoints),
        )
        self._looks_at_servers = settings.concurrency == 0
        self._queries: dict[int, QueryInProgress] = {}  # by prompt
        self.is_draining = False
        self._caches = ServerCaches(endpoints, servers.labels, self._cached, metrics.generator)
        self._requests = RequestsInFlight(servers, on_error=self._broke)
        self.soon = self._requests.soon
        self.warmer = Warmer(
            servers,
            _speculation(servers, follows_caches=bool(endpoints)),
            prepare=prepare,
            run=self._requests.prepare,
            choose=self._server_to_warm,
            load=self._load,
            block_tokens=self._block_tokens,
            metrics=metrics,
            clock=clock,
        )
        self._asks = ServerRequests(servers, outcomes, self._happened, metrics.generator, clock)
        steps = metrics.workflow.steps_in_progress.labels(kind="generate")
        steps.set_function(lambda: sum(work.texts is not None for work in self._all()))

    def start(self) -> None:
        """Starts the event loop, which checks the servers."""
        self._requests.start(self._outcomes.sink.fail)
        self.soon(lambda: self._caches.start(self._requests.prepare))
        if self._looks_at_servers:
            self.soon(lambda: self._requests.prepare(self._look_at_servers()))
        self._happened(events.TimePassed())

    def credit(self) -> int:
        """Returns how many more prompts fit; none while all servers refuse."""
        with self._lock:
            return self._dispatcher.credit()

    @property
    def size_bytes(self) -> int:
        """Bytes of the records in progress."""
        return sum(work.unit.message.size_bytes for work in self._all())

    def tick(self, now_us: int, *, is_busy: bool) -> int | None:
        """Expires what is late, and ends pauses; returns the next time. See `Stage.tick`.

        `is_busy`: there is other work.
        """
        self._happened(events.TimePassed())
        with self._lock:
            wake_us = self._dispatcher.wake_us()
            states = [server.state for server in self._dispatcher.servers]
            is_idle = "probing" not in states and not (self._dispatcher.prompts or is_busy)
            self._measure()
        soon_us = now_us + WAKE_US
        return wake_us if is_idle else min(soon_us, wake_us if wake_us is not None else soon_us)

    def not_ready(self) -> Sequence[str]:
        """Returns why no server takes prompts; nothing if one does, or if there is no model.

        Returns nothing, too, while the service stops and the last answers are in progress.
        """
        with self._lock:
            is_finishing = self.is_draining and self._dispatcher.in_flight > 0
            if self._dispatcher.is_open or is_finishing:
                return ()
            return tuple(
                f"LLM server at {self._servers[server].address} {trouble}"
                for server, trouble in enumerate(self._asks.troubles)
            )

    def close(self) -> None:
        """Cancels the requests in flight, and closes the connections."""
        self._requests.close()

    # ---- any thread

    def add(self, work: QueryInProgress, warmed_at: int | None = None) -> None:
        """Adds a prompt. `warmed_at`: the server that was warmed for it."""
        retrieval, texts = work.unit.record, work.texts
        prompt = Prompt(
            id=work.id,
            arrival_us=work.progress.arrived_us,
            priority=work.prepared.request.priority,
            deadline_us=retrieval.deadline_us,
            tenant=tenant_of(retrieval.headers),
            warmed_at=warmed_at,
            steps_done=finished_steps(retrieval.query),
            key=None if texts is None else work.prompt_key,
            digest=work.prepared.prompt_hash,
        )
        self._queries[work.id] = work
        self._happened(events.PromptArrived(prompt=prompt))
        # After its arrival: tokens of an unknown prompt are ignored.
        self.soon(lambda: self._requests.prepare(self._tokenize(work)))

    def hasten(self, unit_id: int, priority: int, deadline_us: int | None) -> None:
        """See `generator.dedup.prompt_stage`."""
        if (work := self._queries.get(unit_id)) is not None:
            request = replace(work.prepared.request, priority=priority)
            work.prepared = replace(work.prepared, request=request)
        hastened = events.PromptHastened(id=unit_id, priority=priority, deadline_us=deadline_us)
        self._happened(hastened)

    def cancel(self, unit_id: int) -> None:
        """Ends the prompts of a query that was withdrawn."""
        for id in self._ids_of({unit_id}):
            self._happened(events.PromptCancelled(id=id))

    def revoke(self, unit_ids: Set[int]) -> None:
        """Forgets the prompts of units, and cancels their requests."""
        ids = self._ids_of(unit_ids)
        for id in ids:
            self._queries.pop(id, None)
        self._happened(events.PromptsRevoked(ids=ids))

    def notes(self) -> Sequence[str]:
        """Returns which queries wait because servers refuse them and accept others."""
        with self._lock:
            refused = self._dispatcher.refused()
        notes = [
            f"query {work.unit.record.query.query_id[:NOTE_ID_CHARS_MAX]!r} is refused since "
            f"{datetime.fromtimestamp(refusals.since_us // 1_000_000, UTC).isoformat(' ')} "
            f"(requests: {work.progress.attempts}): {work.progress.trouble}"
            for id, refusals in refused[:NOTES_MAX]
            if (work := self._queries.get(id)) is not None
        ]
        more = len(refused) - NOTES_MAX
        return (*notes, f"{more} more queries are refused") if more > 0 else tuple(notes)

    def _happened(self, event: events.DispatchEvent) -> None:
        """Passes an event to the dispatcher, and its actions to the event loop, in one order."""
        with self._lock:
            actions = self._dispatcher.step(event, self._clock.now_us())
            if actions:
                self.soon(partial(self._act, actions))

    def _measure(self) -> None:
        """Writes the metrics of the servers. The caller has the lock."""
        metrics = self._metrics.generator
        for place, server in enumerate(self._dispatcher.servers):
            label = self._servers.labels[place]
            metrics.llm_server_open.labels(server=label).set(server.is_open)
            metrics.llm_concurrency.labels(server=label).set(server.concurrency)
            if server.tree is not None:
                self._caches.measure(place, server.tree)

    def _all(self) -> list[QueryInProgress]:
        return list(self._queries.values())

    def _ids_of(self, unit_ids: Set[int]) -> frozenset[int]:
        return frozenset(work.id for work in self._all() if work.unit.id in unit_ids)

    # ---- the event loop

    def _cached(self, server: int, event: KvTreeEvent) -> None:
        self._happened(events.CacheChanged(server=server, event=event))

    def _server_to_warm(self, token_ids: tuple[int, ...], warm_ups: Sequence[int]) -> int:
        with self._lock:
            return self._dispatcher.server_to_warm(token_ids, warm_ups)

    def _block_tokens(self, server: int) -> int:
        with self._lock:
            tree = self._dispatcher.servers[server].tree
            return 0 if tree is None else tree.block_tokens

    def _load(self, server: int, warm_ups: int) -> EngineLoad:
        """Returns the load of a server with so many warm-ups; a prompt waits if it refuses."""
        with self._lock:
            one = self._dispatcher.servers[server]
            return EngineLoad(
                in_flight=one.in_flight + warm_ups,
                waiting=max(self._dispatcher.waiting, self.is_draining or not one.is_open),
                limit=one.concurrency,
            )

    def _act(self, actions: tuple[events.DispatchAction, ...]) -> None:
        for action in actions:
            try:
                self._do(action)
            except Exception as error:  # the event loop would only log it, and lose the query
                self._requests.broke(getattr(action, "id", None), error)

    def _do(self, action: events.DispatchAction) -> None:
        match action:
            case events.SendPrompt(id=id, attempt=attempt, server=server):
                if (work := self._queries.get(id)) is not None:  # else revoked
                    work.progress.attempts, work.server = attempt, server
                    self.warmer.make_room(server)
                    self._requests.send(id, self._asks.ask(work))
            case events.ProbeServer(server=server, probe=probe):
                self._requests.prepare(self._asks.probe(server, probe))
            case events.ReplayCache(server=server, replay_from=first):
                self._caches.replay(server, first)
            case events.CancelRequest(id=id):
                if self._requests.cancel(id):
                    self._metrics.generator.llm_requests.labels(outcome="cancelled").inc()
            case events.EndQuery(id=id):
                if (work := self._queries.pop(id, None)) is not None:  # else revoked
                    try:
                        self._end(action, work)
                    except Exception as error:  # `work` is not found by its id any more
                        self._charge(work.unit.id, error)

    def _end(self, action: events.EndQuery, work: QueryInProgress) -> None:
        other = action.text_of
        if other is not None and not self._outcomes.share(self._queries.get(other), work):
            self.add(work)  # the other one was revoked, or its prompt refused
            return
        self._outcomes.end(action.how, work)
        if work.texts is not None and work.texts.is_over:
            self.revoke({work.unit.id})

    def _broke(self, id: int, error: Exception) -> None:
        work = self._queries.get(id)
        self._charge(id if work is None else work.unit.id, error)

    async def _look_at_servers(self) -> None:
        """Asks the servers without end how many requests wait in them."""
        while True:
            await asyncio.sleep(LOOK_S)
            for server in range(len(self._servers)):
                waiting = await self._servers[server].waiting()
                self._happened(events.LoadSeen(server=server, waiting=waiting))

    async def _tokenize(self, work: QueryInProgress) -> None:
        """Finds out the ids of a prompt while it waits."""
        try:
            work.token_ids = await self._servers.tokenize(work.prepared.request)
        except LlmRefusal:
            return  # the request finds out, and reports it
        except Exception as error:
            self._broke(work.id, error)
            return
        if work.token_ids:
            self._happened(events.PromptTokenized(id=work.id, token_ids=work.token_ids))


def _speculation(servers: LlmServers, *, follows_caches: bool) -> SpeculationPolicy:
    """Returns the policy of warm-ups: none where a prompt may miss the server that was warmed."""
    if len(servers) == 1 or follows_caches:
        return Auto(Likely())
    if len(servers):
        log.info("several LLM servers are warmed only if llm.kv_events says what they have cached")
    return NoSpeculation()
