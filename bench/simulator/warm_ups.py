"""Searches, warm-ups and prompts on virtual time: what a policy of speculation saves and wastes.

Questions are asked one after the other. An LLM server works in steps, and a step in progress cannot
be cut. A step computes a prompt or a warm-up, or takes one token of an answer. The prefix cache
holds what was computed for a question, in full blocks; other questions share nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np

from carpool.arrays import Float32, Int64
from generator.plan import warm_ups
from generator.plan.warm_ups import common

Passages = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredDraft(warm_ups.DraftFound):
    """A draft with the scores of its passages, for policies that ask for them."""

    scores: tuple[float, ...]


class WarmUpLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes: by default, of SmolLM2-135M in vLLM on two cores.

    `search_us`: of a search. `tail_tokens`: of a prompt behind its passages. `step_us`: of any
    step; `prefill_us`: of a token of a prompt; `decode_us`: of a token of an answer.
    """

    search_us: int
    answer_tokens: int = 16
    tail_tokens: int = 40
    step_us: int = 64_000
    prefill_us: int = 1_350
    decode_us: int = 7_000
    block_tokens: int = 32


class WarmUpFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy did.

    `saved` is the share of the prompts' tokens that was computed when the search ended. `in_vain`
    is the number of tokens computed for nothing, over that of the prompts. `ttft_ms` is the median
    time from the end of the search to the first token.
    """

    saved: float
    in_vain: float
    ttft_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a search has found at `at`, a share of its time; the last is its result."""

    passages: Passages
    scores: tuple[float, ...]
    at: float


def found_in(
    clusters: Sequence[int], vector: Float32, corpus: Float32, rows_of: Sequence[Int64], count: int
) -> tuple[Found, ...]:
    """Returns the best `count` rows after each of `clusters`, which are read in this order."""
    total = sum(len(rows_of[number]) for number in clusters)
    rows = np.array([], dtype=np.int64)
    done, found = 0, []
    for number in clusters:
        rows = np.concatenate([rows, rows_of[number]])
        scores = corpus[rows] @ vector
        best = np.lexsort((rows, -scores))[:count]
        rows, scores = rows[best], scores[best]
        done += len(rows_of[number])
        passages = tuple(map(str, rows.tolist()))
        found.append(Found(passages=passages, scores=tuple(scores.tolist()), at=done / total))
    return tuple(found)


@dataclass(slots=True, eq=False)
class _Request:
    """A prompt, or a warm-up: of `length` tokens, those of its passages first.

    Its step is from `begin_us` to `end_us`, and computes what is not cached.
    """

    passages: Passages
    tokens: tuple[int, ...]
    length: int
    cached: int = 0
    begin_us: int = 0
    end_us: int = 0

    def warm(self, passages: Passages, now_us: int) -> int:
        """Returns the tokens of a prompt with these passages that are computed by now."""
        in_common = sum(self.tokens[: common(self.passages, passages)])
        done = min(1.0, (now_us - self.begin_us) / (self.end_us - self.begin_us))
        return min(self.cached + int(done * (self.length - self.cached)), in_common)


class WarmUpSimulation:
    """One run over searches. For one call of `run`."""

    def __init__(
        self,
        searches: Sequence[Sequence[Found]],
        passage_tokens: Sequence[int],
        policy: warm_ups.SpeculationPolicy,
        load: WarmUpLoad,
    ) -> None:
        """`passage_tokens`: by the number that is a passage's id."""
        self._searches, self._tokens, self._policy = searches, passage_tokens, policy
        self._load = load
        self._now_us = 0
        self._begun: list[_Request] = []  # of the question that is asked
        self._running: _Request | None = None  # its warm-up, begun or not
        self._saved = self._useful = self._computed = 0
        self._ttfts_us: list[int] = []

    def run(self) -> WarmUpFigures:
        """Asks everything."""
        for number, search in enumerate(self._searches):
            self._ask(str(number), search)
        return WarmUpFigures(
            saved=self._saved / self._useful,
            in_vain=self._computed / self._useful - 1,
            ttft_ms=median(self._ttfts_us) / 1_000,
        )

    def _ask(self, query: str, search: Sequence[Found]) -> None:
        load, begin_us = self._load, self._now_us
        self._begun = []
        for place, found in enumerate(search[:-1], 1):
            self._work_until(query, begin_us + round(found.at * load.search_us))
            draft = ScoredDraft(
                query=query,
                passages=found.passages,
                scores=found.scores,
                clusters_done=place,
                clusters_total=len(search),
                at_us=self._now_us,
            )
            self._tell(draft)
        self._work_until(query, begin_us + load.search_us)
        final, searched_us = search[-1].passages, self._now_us
        self._saved += max((one.warm(final, searched_us) for one in self._begun), default=0)
        self._running = None
        self._tell(warm_ups.SearchEnded(query=query, passages=final, at_us=searched_us))
        prompt = self._request(final)
        prompt.length += load.tail_tokens
        self._now_us = self._begin(prompt)
        self._ttfts_us.append(self._now_us - searched_us)
        self._now_us += (load.answer_tokens - 1) * (load.step_us + load.decode_us)
        self._tell(warm_ups.QueryAnswered(query=query, wait_us=self._ttfts_us[-1]))
        self._useful += prompt.length
        self._computed += sum(one.length - one.cached for one in self._begun)

    def _work_until(self, query: str, until_us: int) -> None:
        """Begins the warm-up that waits when the server is idle, and tells the policy of ends."""
        while (one := self._running) is not None:
            if one not in self._begun:
                free_us = max(self._now_us, self._begun[-1].end_us if self._begun else 0)
                if free_us >= until_us:
                    break
                self._now_us = free_us
                self._begin(one)
            if one.end_us >= until_us:
                break
            self._now_us, self._running = one.end_us, None
            self._tell(warm_ups.WarmUpEnded(query=query, is_done=True))
        self._now_us = until_us

    def _request(self, passages: Passages) -> _Request:
        tokens = tuple(self._tokens[int(passage)] for passage in passages)
        return _Request(passages, tokens, length=sum(tokens))

    def _begin(self, one: _Request) -> int:
        """Computes what the cache does not have, when the server is idle; returns the end."""
        load, block = self._load, self._load.block_tokens
        if self._begun:
            self._now_us = max(self._now_us, self._begun[-1].end_us)
        warm = [other.warm(one.passages, self._now_us) for other in self._begun]
        # One token at least is computed: the answer begins with what follows the last token.
        one.cached = min(max(warm, default=0), one.length - 1) // block * block
        one.begin_us = self._now_us
        tokens = one.length - one.cached
        one.end_us = one.begin_us + load.step_us + tokens * load.prefill_us
        self._begun.append(one)
        return one.end_us

    def _tell(self, event: warm_ups.SpeculationEvent) -> None:
        in_flight = int(self._running is not None)
        load = warm_ups.EngineLoad(in_flight=in_flight, waiting=0, limit=1)
        for action in self._policy.step(event, load):
            self._running = None
            if isinstance(action, warm_ups.StartWarmUp):
                one = self._request(action.passages)
                # A block that is not full is not cached, so it is left to the prompt.
                block = self._load.block_tokens
                one.length = max(1, one.length // block * block)
                self._running = one
