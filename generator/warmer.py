"""Warms the LLM servers' prefix caches while searches run, and counts used and unused tokens.

A policy decides what to warm (`generator.plan.warm_ups`); `Warmer` does it, on the event loop of
the requests. A warm-up ends at the latest when its search has ended; the server keeps the blocks
that it has computed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from carpool.clock import Clock
from carpool.telemetry.metrics import Metrics
from generator.llm.protocol import LlmFinished, LlmRefusal, LlmRequest, PromptRefused
from generator.llm.servers import LlmServers
from generator.plan.recent import Recent
from generator.plan.warm_ups import (
    CancelWarmUp,
    DraftFound,
    EngineLoad,
    QueryAnswered,
    SearchEnded,
    SpeculationEvent,
    SpeculationPolicy,
    StartWarmUp,
    WarmUpEnded,
    common,
)
from generator.prompts import PreparedPrompt
from schemas.headers import tenant_of
from schemas.retrieval import Retrieval

SEARCHES_MAX = 1_000
"""Queries with drafts that are remembered until they are answered; the oldest are forgotten."""
WARM_UP_PRIORITY = 1_000_000
"""Lower than that of every prompt, where the server knows priorities."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """Tokens that warm-ups computed for a query: cached parts of its prompt, and others."""

    used: int = 0
    in_vain: int = 0


@dataclass(slots=True)
class _WarmUp:
    """A prefix that the server computes. `finished` None: it runs, failed or was cancelled."""

    token_ids: tuple[int, ...] = ()
    finished: LlmFinished | None = None


@dataclass(slots=True)
class _SearchingQuery:
    """A query with drafts that is not answered yet. `prompt`: of its last draft.

    `server`: of its last warm-up.
    """

    tenant: str
    revision: int
    prompt: LlmRequest
    warm_ups: list[_WarmUp] = field(default_factory=list)
    server: int = 0
    task: asyncio.Task[None] | None = None


class Warmer:
    """See the module."""

    def __init__(
        self,
        servers: LlmServers,
        policy: SpeculationPolicy,
        *,
        prepare: Callable[[Retrieval], PreparedPrompt | None],
        run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        choose: Callable[[tuple[int, ...], Sequence[int]], int],
        load: Callable[[int, int], EngineLoad],
        block_tokens: Callable[[int], int],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`prepare`: makes the prompt of a draft; None: there is none. `run` starts a task.

        `choose`: the server for a prefix (none: not known yet), given the warm-ups at each server.
        `load`: the load of a server, given its warm-ups. `block_tokens`: tokens of a block of its
        cache; 0: not known. A warm-up ends with a full block, because servers cache no other.
        """
        self._servers = servers
        self._policy = policy
        self._prepare = prepare
        self._run = run
        self._choose = choose
        self._load = load
        self._block_tokens = block_tokens
        self._metrics = metrics.generator
        self._clock = clock
        self._queries: OrderedDict[str, _SearchingQuery] = OrderedDict()  # by place
        self._searched: Recent[str, bool] = Recent(SEARCHES_MAX)

    def server_of(self, place: str) -> int | None:
        """Returns the server that was warmed for a query; None: none was. For any thread."""
        query = self._queries.get(place)
        is_warmed = query is not None and any(each.token_ids for each in query.warm_ups)
        return query.server if query is not None and is_warmed else None

    def draft(self, draft: Retrieval) -> None:
        """Takes a draft. Ignores a repeated or older one, and any after the end of its search."""
        place = draft.source.place
        query = self._queries.get(place)
        if place in self._searched or (query is not None and draft.revision <= query.revision):
            return
        prepared = self._prepare(draft)
        if prepared is None:
            return
        if query is None:
            query = self._queries[place] = _SearchingQuery(
                tenant=tenant_of(draft.headers), revision=draft.revision, prompt=prepared.request
            )
        query.revision, query.prompt = draft.revision, prepared.request
        self._tell(
            DraftFound(
                query=place,
                passages=tuple(hit.doc_id for hit in prepared.given.values()),
                clusters_done=draft.clusters_done or 0,
                clusters_total=draft.clusters_total or 0,
                at_us=self._clock.now_us(),
            )
        )
        while len(self._queries) > SEARCHES_MAX:
            self.answered(next(iter(self._queries)), (), 0, None)

    def searched(self, retrieval: Retrieval) -> None:
        """The search of a query has ended: its prompt is known."""
        place = retrieval.source.place
        self._searched.put(place, True)
        if (query := self._queries.get(place)) is None:
            return
        self._cancel(query)
        prepared = self._prepare(retrieval)
        passages = tuple(hit.doc_id for hit in prepared.given.values()) if prepared else ()
        self._tell(SearchEnded(query=place, passages=passages, at_us=self._clock.now_us()))

    def answered(
        self, place: str, token_ids: tuple[int, ...], cached_tokens: int, wait_us: int | None
    ) -> Warmed:
        """A prompt was answered, of which `cached_tokens` were cached. Returns what was warmed.

        `wait_us`: from the end of its search to the first token; None: it was sent more than once.
        Of a warm-up that did not finish, all tokens count that no earlier warm-up had.
        """
        if place not in self._queries:
            return Warmed()
        self._cancel(self._queries[place])
        self._tell(QueryAnswered(query=place, wait_us=wait_us))
        warmed = used = 0
        known: tuple[int, ...] = ()
        query = self._queries.pop(place)
        for warm_up in query.warm_ups:
            ids = warm_up.token_ids
            begin = warm_up.finished.cached_tokens if warm_up.finished else common(ids, known)
            warmed += len(ids) - begin
            used += max(0, min(common(ids, token_ids), cached_tokens) - begin)
            known = ids
        self._metrics.tokens.add("warmed_used", query.tenant, used)
        self._metrics.tokens.add("warmed_in_vain", query.tenant, warmed - used)
        return Warmed(used=used, in_vain=warmed - used)

    def make_room(self, server: int) -> None:
        """Cancels warm-ups, the newest first, until the server has room for its prompts."""
        for place, query in reversed(tuple(self._queries.items())):
            load = self._load_at(server)
            if load.in_flight <= load.limit:
                return
            if query.task is not None and query.server == server:
                self._cancel(query)
                self._tell(WarmUpEnded(query=place, is_done=False))

    def _tell(self, event: SpeculationEvent) -> None:
        load = self._load_at(self._choose((), self._at_servers()))
        for action in self._policy.step(event, load):
            query = self._queries[action.query]
            match action:
                case StartWarmUp(passages=passages):
                    assert query.task is None, "a query has one warm-up at a time"
                    warm_up = _WarmUp()
                    query.warm_ups.append(warm_up)
                    query.server = self._choose((), self._at_servers())
                    query.task = self._run(self._warm(action.query, query, warm_up, len(passages)))
                case CancelWarmUp():
                    self._cancel(query)

    def _load_at(self, server: int) -> EngineLoad:
        return self._load(server, self._at_servers()[server])

    def _at_servers(self, *, but: _SearchingQuery | None = None) -> list[int]:
        """Returns the warm-ups at each server, without that of one query."""
        counts = [0] * len(self._servers)
        for query in self._queries.values():
            counts[query.server] += query.task is not None and query is not but
        return counts

    async def _warm(
        self, place: str, query: _SearchingQuery, warm_up: _WarmUp, passages: int
    ) -> None:
        outcome, prompt = "cancelled", query.prompt
        try:
            ids = await self._servers[query.server].prefix(prompt, passages)
            if not ids:
                outcome = "text"  # the server takes no ids
            else:
                query.server = self._choose(ids, self._at_servers(but=query))
                rest = len(ids) % (self._block_tokens(query.server) or 1)
                ids = warm_up.token_ids = ids[: len(ids) - rest] or ids
                request = _warm_up_of(prompt, ids)
                async with aclosing(self._servers[query.server].stream(request)) as events:
                    async for event in events:
                        if isinstance(event, LlmFinished):
                            warm_up.finished = event
                outcome = "done"
        except (LlmRefusal, PromptRefused):
            outcome = "refused"  # the request of a prompt reports the reason
        finally:
            self._metrics.warm_ups.labels(outcome=outcome).inc()
        if query.task is asyncio.current_task():
            query.task = None
            self._tell(WarmUpEnded(query=place, is_done=outcome == "done"))

    def _cancel(self, query: _SearchingQuery) -> None:
        if query.task is not None:
            query.task.cancel()
            query.task = None


def _warm_up_of(prompt: LlmRequest, token_ids: tuple[int, ...]) -> LlmRequest:
    return replace(
        prompt,
        id=f"{prompt.id}/warm-up",
        token_ids=token_ids,
        max_tokens=1,
        priority=WARM_UP_PRIORITY,
    )
