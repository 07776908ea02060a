"""A model of an LLM server's time: it works in steps, and a step in progress cannot be cut.

A step takes one token of each answer in progress, and as many tokens of prompts and warm-ups as
fit. Requests that were begun come first, then prompts, then warm-ups. The prefix cache holds what
was computed for a question, in full blocks; other questions share nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


class EngineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes. The defaults resemble SmolLM2-135M in vLLM on two cores.

    `step_us`: of any step; `prefill_us`: of a token of a prompt; `decode_us`: of a token of an
    answer. `step_tokens`: of prompts and answers in one step. `block_tokens`: of the cache.
    `removal_us`: to remove a passage from the middle of what is cached; None: the server cannot, as
    vLLM.
    """

    step_us: int = 64_000
    prefill_us: int = 1_350
    decode_us: int = 7_000
    step_tokens: int = 2_048
    block_tokens: int = 32
    removal_us: int | None = None


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A prompt, or a warm-up. `tokens`: of each passage; `length`: of what is computed of all.

    `cached`: tokens that were not computed for it; `computed`: those that were. None of it is known
    before its first step.
    """

    query: str
    passages: tuple[str, ...]
    tokens: tuple[int, ...]
    length: int
    answer_tokens: int = 0
    cached: int = 0
    computed: int = 0
    written: int = 0
    is_begun: bool = False
    removal_us: int = 0
    is_cancelled: bool = False

    @property
    def is_prompt(self) -> bool:
        """Whether an answer is written."""
        return self.answer_tokens > 0

    @property
    def left(self) -> int:
        """Tokens that are still to be computed before the first token of an answer."""
        return self.length - self.cached - self.computed


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A step in progress: the tokens that it computes of each request, 0 for one of an answer."""

    parts: tuple[tuple[EngineRequest, int], ...]
    begin_us: int
    end_us: int


class StepEngine:
    """One server. A step costs O(requests)."""

    def __init__(self, costs: EngineCosts) -> None:
        self._costs = costs
        self._requests: list[EngineRequest] = []
        self._done: dict[str, list[EngineRequest]] = {}  # what was computed, by query
        self.step: EngineStep | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: EngineRequest) -> None:
        """Takes a request."""
        self._requests.append(request)

    def cancel(self, request: EngineRequest) -> None:
        """Forgets a request. The step in progress goes on, and what it computes is cached."""
        request.is_cancelled = True
        self._requests.remove(request)

    def forget(self, query: str) -> None:
        """Forgets what is cached for a question."""
        self._done.pop(query, None)

    def begin_step(self, now_us: int) -> EngineStep | None:
        """Begins the next step; None while there is nothing to do."""
        assert self.step is None, "a step is in progress"
        room = self._costs.step_tokens
        parts: list[tuple[EngineRequest, int]] = []
        prefill = decodes = removal_us = 0
        for one in sorted(self._requests, key=lambda one: (not one.is_begun, not one.is_prompt)):
            if not one.is_begun:
                self._begin(one)
                removal_us += one.removal_us
            if one.left > 0:
                part = min(one.left, room)
                prefill += part
            else:
                part, room, decodes = 0, room - 1, decodes + 1
            if part or not one.left:
                parts.append((one, part))
            room -= part
        if not parts:
            return None
        costs = self._costs
        took = costs.step_us + prefill * costs.prefill_us + decodes * costs.decode_us + removal_us
        self.step = EngineStep(tuple(parts), now_us, now_us + took)
        return self.step

    def end_step(self) -> tuple[EngineRequest, ...]:
        """Ends the step. Returns the requests that got their first token, or that are done."""
        assert self.step is not None
        step, self.step = self.step, None
        told = []
        for one, part in step.parts:
            one.computed += part
            if one.is_cancelled:
                continue
            if one.left == 0:
                one.written += one.is_prompt
                if one.written in (1, one.answer_tokens) or not one.is_prompt:
                    told.append(one)
                if one.written == one.answer_tokens:
                    self._requests.remove(one)
        return tuple(told)

    def warm_tokens(self, query: str, passages: Sequence[str], now_us: int) -> float:
        """Returns the tokens of a prompt that are computed now; of a step in progress its part."""
        step = self.step
        best = 0.0
        for one in self._done.get(query, ()):
            computed: float = one.cached + one.computed
            if step is not None:
                part = sum(part for request, part in step.parts if request is one)
                computed += part * (now_us - step.begin_us) / (step.end_us - step.begin_us)
            best = max(best, min(computed, _common_tokens(one, passages)))
        return best

    def _begin(self, one: EngineRequest) -> None:
        one.is_begun = True
        found = self._done.setdefault(one.query, [])
        block = self._costs.block_tokens
        for other in found:
            computed = other.cached + other.computed
            cached = min(computed, _common_tokens(other, one.passages)) // block * block
            one.cached = max(one.cached, cached)
        for other in found if self._costs.removal_us is not None else ():
            self._remove_from(other, one)
        found.append(one)
        # One token at least is computed: the answer begins with what follows the last token.
        one.cached = min(one.cached, (one.length - 1) // block * block)

    def _remove_from(self, other: EngineRequest, one: EngineRequest) -> None:
        """Removes wrong passages and keeps the tokens behind them, where that is the cheaper
        correction.

        The prefill of the wrong ones has ended, because a step in progress cannot be cut.
        """
        costs, block = self._costs, self._costs.block_tokens
        behind = _tokens_in_order(other, one.passages) // block * block - one.cached
        name, took_us = correction(
            behind_tokens=behind,
            left_tokens=0,
            us_a_token=costs.prefill_us,
            removal_us=costs.removal_us or 0,
        )
        if name == "remove-after-prefill":
            one.cached += behind
            one.removal_us = round(took_us)


def correction(
    *, behind_tokens: int, left_tokens: int, us_a_token: float, removal_us: float
) -> tuple[str, float]:
    """Returns the cheaper correction of a wrong passage, and its us (AquaPipe, section 4.3).

    `behind_tokens`: of right passages behind the wrong one; `left_tokens`: of passages that are not
    prefilled yet, right or wrong. `removal_us`: to drop a passage from what is cached, and to move
    what is behind it.
    """
    re_prefill_us = behind_tokens * us_a_token
    remove_us = left_tokens * us_a_token + removal_us
    if remove_us < re_prefill_us:
        return "remove-after-prefill", remove_us
    return "re-prefill", re_prefill_us


def _common_tokens(one: EngineRequest, passages: Sequence[str]) -> int:
    common = 0
    for left, right, tokens in zip(one.passages, passages, one.tokens, strict=False):
        if left != right:
            break
        common += tokens
    return common


def _tokens_in_order(one: EngineRequest, passages: Sequence[str]) -> int:
    """Returns the computed tokens of those first `passages` that `one` has, in its order."""
    at = tokens = place = 0
    for passage in passages:
        while place < len(one.passages) and one.passages[place] != passage:
            at, place = at + one.tokens[place], place + 1
        if place == len(one.passages) or at + one.tokens[place] > one.cached + one.computed:
            break
        at, tokens, place = at + one.tokens[place], tokens + one.tokens[place], place + 1
    return tokens
