"""Searches, warm-ups and prompts on virtual time: what policies of speculation are worth."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import msgspec

from bench.generation.progressive import Found, ProgressiveSearch, passages_of
from bench.simulator.llm_steps import EngineCosts, EngineRequest, StepEngine
from generator.plan.speculation.likely import common
from generator.plan.speculation.protocol import (
    CancelWarmUp,
    DraftFound,
    EngineLoad,
    QueryAnswered,
    SearchEnded,
    SpeculationAction,
    SpeculationEvent,
    SpeculationPolicy,
    StartWarmUp,
    WarmUpEnded,
)
from generator.plan.speculation.warm_ups import WarmUps


class PipelineShape(msgspec.Struct, frozen=True, kw_only=True):
    """A load: `clients` ask one question after the other, and the server takes as many at once.

    `search_us`: of a search, spread over its clusters by their bytes. `answer_tokens`: on average.
    `tail_tokens`: of a prompt behind its passages. Its head is the same in all prompts, and cached.
    """

    search_us: int
    clients: int
    answer_tokens: int = 64
    tail_tokens: int = 40


class SpeculationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy did.

    `hidden_share`: of the tokens of the prompts, those that were computed when the search ended.
    `waste`: tokens computed for nothing over the tokens of the prompts. `ttft_ms`: the median, from
    the end of the search to the first token; `ttft_ms_mean`: the mean.
    """

    hidden_share: float
    waste: float
    ttft_ms: float
    ttft_ms_mean: float
    warm_ups_a_question: float


class Oracle:
    """Warms what a draft has of the final prompt, as soon as there is a draft that has it.

    It knows which passages are final, and not earlier than they are found.
    """

    def __init__(self, final: Mapping[str, tuple[str, ...]]) -> None:
        """`final`: the passages of each question."""
        self._final = final
        self._warm_ups = WarmUps()

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Wishes for the final passages that the draft begins with."""
        match event:
            case DraftFound():
                right = common(event.passages, self._final[event.query])
                return self._warm_ups.follow(event, right, load)
            case WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case SearchEnded() | QueryAnswered():
                self._warm_ups.forget(event.query)
                return ()


@dataclass(slots=True)
class _Query:
    name: str
    search: ProgressiveSearch
    prompt: EngineRequest
    searched_us: int = 0
    hidden_tokens: float = 0.0
    ttft_us: int = 0
    draft: DraftFound | None = None
    running: EngineRequest | None = None
    warm_ups: list[EngineRequest] = field(default_factory=list)


class SpeculationSimulation:
    """One run. For one call of `run`."""

    def __init__(
        self,
        searches: Sequence[ProgressiveSearch],
        tokens: Sequence[int],
        policy: SpeculationPolicy,
        shape: PipelineShape,
        costs: EngineCosts,
    ) -> None:
        """`tokens`: of each row of the corpus, as a passage of a prompt."""
        self._tokens = tokens
        self._policy = policy
        self._shape = shape
        self._costs = costs
        self._engine = StepEngine(costs)
        self._coming = [self._query(search) for search in reversed(searches)]
        self._queries = {query.name: query for query in self._coming}
        self._waiting: list[_Query] = []
        self._searched: list[_Query] = []
        self._now_us = 0
        self._number = itertools.count()
        self._events: list[tuple[int, int, _Query | None, Found | None]] = []

    def run(self) -> SpeculationFigures:
        """Asks everything."""
        for client in range(self._shape.clients):
            self._ask(client * self._shape.search_us // self._shape.clients)
        while self._events:
            self._now_us, _, query, found = heapq.heappop(self._events)
            if query is None:
                self._end_step()
            elif found is not None:
                self._draft(query, found)
            else:
                self._end_search(query)
            self._begin_step()
        assert not self._waiting and not len(self._engine), "something was not answered"
        return self._figures()

    def _query(self, search: ProgressiveSearch) -> _Query:
        name = str(search.question)
        prompt = self._request(name, passages_of(search.found[-1]))
        prompt.length += self._shape.tail_tokens
        prompt.answer_tokens = _spread(self._shape.answer_tokens, search.question)
        return _Query(name, search, prompt)

    def _request(self, query: str, passages: tuple[str, ...]) -> EngineRequest:
        tokens = tuple(self._tokens[int(passage)] for passage in passages)
        return EngineRequest(query, passages, tokens, length=sum(tokens))

    def _ask(self, in_us: int = 0) -> None:
        if self._coming:
            query = self._coming.pop()
            for found in query.search.found[:-1]:
                at_us = in_us + round(found.bytes_share * self._shape.search_us)
                self._plan(at_us, query, found)
            self._plan(in_us + self._shape.search_us, query, None)

    def _plan(self, in_us: int, query: _Query | None, found: Found | None) -> None:
        heapq.heappush(self._events, (self._now_us + in_us, next(self._number), query, found))

    def _draft(self, query: _Query, found: Found) -> None:
        query.draft = DraftFound(
            query=query.name,
            passages=passages_of(found),
            scores=found.scores,
            clusters_done=found.clusters_done,
            clusters_total=query.search.found[-1].clusters_done,
            at_us=self._now_us,
        )
        self._tell(query.draft)

    def _end_search(self, query: _Query) -> None:
        final = query.prompt.passages
        query.searched_us = self._now_us
        query.hidden_tokens = self._engine.warm_tokens(query.name, final, self._now_us)
        self._cancel(query)
        self._searched.append(query)
        self._waiting.append(query)
        self._tell(SearchEnded(query=query.name, passages=final, at_us=self._now_us))
        self._send()

    def _send(self) -> None:
        """Sends prompts that wait; warm-ups make room for them, the newest first."""
        while self._waiting:
            if len(self._engine) == self._shape.clients:
                warming = [one for one in self._queries.values() if one.running is not None]
                if not warming:
                    return
                self._cancel(warming[-1])
                self._tell(WarmUpEnded(query=warming[-1].name, is_done=False, at_us=self._now_us))
                continue
            self._engine.add(self._waiting.pop(0).prompt)

    def _begin_step(self) -> None:
        if self._engine.step is None and (step := self._engine.begin_step(self._now_us)):
            self._plan(step.end_us - self._now_us, None, None)

    def _end_step(self) -> None:
        for request in self._engine.end_step():
            query = self._queries[request.query]
            if not request.is_prompt:
                query.running = None
                self._tell(WarmUpEnded(query=query.name, is_done=True, at_us=self._now_us))
                continue
            if request.written == 1:
                query.ttft_us = self._now_us - query.searched_us
            if request.written == request.answer_tokens:
                self._tell(QueryAnswered(query=query.name, wait_us=query.ttft_us))
                self._engine.forget(query.name)
                self._ask()
                self._send()

    def _tell(self, event: SpeculationEvent) -> None:
        load = EngineLoad(
            in_flight=len(self._engine), waiting=len(self._waiting), limit=self._shape.clients
        )
        for action in self._policy.step(event, load):
            query = self._queries[action.query]
            match action:
                case CancelWarmUp():
                    self._cancel(query)
                case StartWarmUp():
                    request = self._request(query.name, action.passages)
                    # A block that is not full is not cached, so it is left to the prompt.
                    block = self._costs.block_tokens
                    request.length = max(1, request.length // block * block)
                    query.warm_ups.append(request)
                    query.running = request
                    self._engine.add(request)

    def _cancel(self, query: _Query) -> None:
        if query.running is not None:
            self._engine.cancel(query.running)
            query.running = None

    def _figures(self) -> SpeculationFigures:
        useful = sum(one.prompt.length for one in self._searched)
        warmed = sum(each.computed for one in self._searched for each in one.warm_ups)
        prompts = sum(one.prompt.computed for one in self._searched)
        waits = [one.ttft_us / 1_000 for one in self._searched]
        return SpeculationFigures(
            hidden_share=sum(one.hidden_tokens for one in self._searched) / useful,
            waste=(warmed + prompts) / useful - 1,
            ttft_ms=median(waits),
            ttft_ms_mean=fmean(waits),
            warm_ups_a_question=sum(len(one.warm_ups) for one in self._searched)
            / len(self._searched),
        )


def _spread(tokens: int, number: int) -> int:
    """Returns from half to one and a half of `tokens`, so that clients do not run in lockstep."""
    return max(1, tokens // 2 + number * 37 % (tokens + 1))
