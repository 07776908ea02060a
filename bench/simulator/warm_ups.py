"""Searches, warm-ups and prompts on virtual time: what a policy of speculation saves and wastes.

An LLM server works in steps, and a step in progress cannot be cut. A step computes all prompts and
warm-ups that are new, and takes one token of each answer. The prefix cache holds what was computed
for a question, in full blocks; other questions share nothing with it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from generator.plan.speculation import protocol
from generator.plan.speculation.likely import common

Passages = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredDraft(protocol.DraftFound):
    """A draft with the scores of its passages, for policies that ask for them."""

    scores: tuple[float, ...]


class WarmUpLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load, and what a step takes: by default, of SmolLM2-135M in vLLM on two cores.

    `clients` ask one question after the other, and the server takes as many at once. `search_us`:
    of a search. `tail_tokens`: of a prompt behind its passages. `step_us`: of any step;
    `prefill_us`: of a token of a prompt; `decode_us`: of a token of an answer.
    """

    search_us: int
    clients: int
    answer_tokens: int = 16
    tail_tokens: int = 40
    step_us: int = 64_000
    prefill_us: int = 1_350
    decode_us: int = 7_000
    block_tokens: int = 32


class WarmUpFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy did.

    `saved`: of the tokens of the prompts, the share that was computed when the search ended.
    `in_vain`: tokens computed for nothing over the tokens of the prompts. `ttft_ms`: the median
    from the end of the search to the first token.
    """

    saved: float
    in_vain: float
    ttft_ms: float
    warm_ups_a_question: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a search has found at `at`, a share of its time; the last is its result."""

    passages: Passages
    scores: tuple[float, ...]
    at: float


@dataclass(slots=True, eq=False)
class _Request:
    """A prompt, or a warm-up. `tokens`: of each passage; `length`: of what is computed of all."""

    query: _Query
    passages: Passages
    tokens: tuple[int, ...]
    length: int
    answer_tokens: int = 0
    cached: int = 0
    computed: int = 0
    written: int = 0
    is_begun: bool = False

    def in_common(self, passages: Passages) -> int:
        """Returns the tokens of the passages with which both begin."""
        return sum(self.tokens[: common(self.passages, passages)])


@dataclass(slots=True, eq=False)
class _Query:
    """`computed`: the requests of this question that were begun, its prompt among them."""

    name: str
    search: Sequence[Found]
    searched_us: int = 0
    saved_tokens: float = 0.0
    ttft_us: int = 0
    running: _Request | None = None
    computed: list[_Request] = field(default_factory=list)


class WarmUpSimulation:
    """One run over searches. For one call of `run`."""

    def __init__(
        self,
        searches: Sequence[Sequence[Found]],
        passage_tokens: Sequence[int],
        policy: protocol.SpeculationPolicy,
        load: WarmUpLoad,
    ) -> None:
        """`passage_tokens`: by the number that is a passage's id."""
        self._tokens, self._policy, self._load = passage_tokens, policy, load
        self._queries = {str(n): _Query(str(n), search) for n, search in enumerate(searches)}
        self._coming = iter(self._queries.values())
        self._waiting: list[_Request] = []
        self._in_server: list[_Request] = []
        self._step: list[tuple[_Request, int]] = []  # with the tokens that it computes of each
        self._step_us = (0, 0)
        self._now_us = 0
        self._number = itertools.count()
        self._events: list[tuple[int, int, _Query | None, int]] = []

    def run(self) -> WarmUpFigures:
        """Asks everything."""
        for client in range(self._load.clients):
            self._ask(client * self._load.search_us // self._load.clients)
        while self._events:
            self._now_us, _, query, place = heapq.heappop(self._events)
            if query is None:
                self._end_step()
            elif place < len(query.search) - 1:
                self._draft(query, place)
            else:
                self._end_search(query)
            self._begin_step()
        return self._figures()

    def _ask(self, in_us: int = 0) -> None:
        query = next(self._coming, None)
        for place, found in enumerate(query.search if query else ()):
            self._plan(in_us + round(found.at * self._load.search_us), query, place)

    def _plan(self, in_us: int, query: _Query | None, place: int = 0) -> None:
        heapq.heappush(self._events, (self._now_us + in_us, next(self._number), query, place))

    def _draft(self, query: _Query, place: int) -> None:
        found = query.search[place]
        self._tell(
            ScoredDraft(
                query=query.name,
                passages=found.passages,
                scores=found.scores,
                clusters_done=place + 1,
                clusters_total=len(query.search),
                at_us=self._now_us,
            )
        )

    def _end_search(self, query: _Query) -> None:
        final = query.search[-1].passages
        begin_us, end_us = self._step_us
        done = dict(self._step)
        for one in query.computed:  # of a step in progress its part
            part = done.get(one, 0) * (self._now_us - begin_us) / max(1, end_us - begin_us)
            warm = min(one.cached + one.computed + part, one.in_common(final))
            query.saved_tokens = max(query.saved_tokens, warm)
        query.searched_us = self._now_us
        self._cancel(query)
        prompt = self._request(query, final)
        prompt.length += self._load.tail_tokens
        prompt.answer_tokens = _spread(self._load.answer_tokens, int(query.name))
        self._waiting.append(prompt)
        ended = protocol.SearchEnded(query=query.name, passages=final, at_us=self._now_us)
        self._tell(ended)
        self._send()

    def _request(self, query: _Query, passages: Passages) -> _Request:
        tokens = tuple(self._tokens[int(passage)] for passage in passages)
        return _Request(query, passages, tokens, length=sum(tokens))

    def _send(self) -> None:
        """Sends prompts that wait; warm-ups make room for them, the newest first."""
        while self._waiting:
            if len(self._in_server) == self._load.clients:
                warming = [one.query for one in self._in_server if one is one.query.running]
                if not warming:
                    return
                self._cancel(warming[-1])
                self._tell(
                    protocol.WarmUpEnded(query=warming[-1].name, is_done=False, at_us=self._now_us)
                )
            else:
                self._in_server.append(self._waiting.pop(0))

    def _begin_step(self) -> None:
        if self._step or not self._in_server:
            return
        self._step = [(one, 0 if one.is_begun else self._begin(one)) for one in self._in_server]
        load = self._load
        decodes = sum(one.written > 0 for one in self._in_server)
        prefill = sum(tokens for _, tokens in self._step)
        took_us = load.step_us + prefill * load.prefill_us + decodes * load.decode_us
        self._step_us = (self._now_us, self._now_us + took_us)
        self._plan(took_us, None)

    def _begin(self, one: _Request) -> int:
        """Returns the tokens to compute: those that the cache does not have."""
        block, earlier = self._load.block_tokens, one.query.computed
        for other in earlier:
            warm = min(other.cached + other.computed, other.in_common(one.passages))
            one.cached = max(one.cached, warm // block * block)
        # One token at least is computed: the answer begins with what follows the last token.
        one.cached = min(one.cached, (one.length - 1) // block * block)
        one.is_begun = True
        earlier.append(one)
        return one.length - one.cached

    def _end_step(self) -> None:
        step, self._step = self._step, []
        for one, tokens in step:
            one.computed += tokens
        for one, _ in step:
            if one not in self._in_server:
                continue  # it was cancelled; what the step computed is cached
            name = one.query.name
            if not one.answer_tokens:
                self._in_server.remove(one)
                one.query.running = None
                ended = protocol.WarmUpEnded(query=name, is_done=True, at_us=self._now_us)
                self._tell(ended)
                continue
            one.written += 1
            if one.written == 1:
                one.query.ttft_us = self._now_us - one.query.searched_us
            if one.written == one.answer_tokens:
                self._in_server.remove(one)
                self._tell(protocol.QueryAnswered(query=name, wait_us=one.query.ttft_us))
                self._ask()
                self._send()

    def _tell(self, event: protocol.SpeculationEvent) -> None:
        in_flight, waiting = len(self._in_server), len(self._waiting)
        load = protocol.EngineLoad(in_flight=in_flight, waiting=waiting, limit=self._load.clients)
        for action in self._policy.step(event, load):
            query = self._queries[action.query]
            if isinstance(action, protocol.CancelWarmUp):
                self._cancel(query)
                continue
            request = self._request(query, action.passages)
            # A block that is not full is not cached, so it is left to the prompt.
            block = self._load.block_tokens
            request.length = max(1, request.length // block * block)
            query.running = request
            self._in_server.append(request)

    def _cancel(self, query: _Query) -> None:
        if query.running is not None:
            self._in_server.remove(query.running)
            query.running = None

    def _figures(self) -> WarmUpFigures:
        queries = self._queries.values()
        prompts = [one.computed[-1] for one in queries]
        useful = sum(prompt.length for prompt in prompts)
        computed = sum(each.computed for one in queries for each in one.computed)
        return WarmUpFigures(
            saved=sum(one.saved_tokens for one in queries) / useful,
            in_vain=computed / useful - 1,
            ttft_ms=median(one.ttft_us / 1_000 for one in queries),
            warm_ups_a_question=sum(len(one.computed) - 1 for one in queries) / len(queries),
        )


def _spread(tokens: int, number: int) -> int:
    """Returns from half to one and a half of `tokens`, so that clients do not run in lockstep."""
    return max(1, tokens // 2 + number * 37 % (tokens + 1))
