"""A model of vLLM's steps with a KV cache of blocks: what fits runs, the rest is preempted.

It is finer than the model that chooses the size of the KV cache: prompts and answers have their own
lengths, memory is taken as tokens are written, a sequence that gets no block loses all and is
computed again, and reading memory overlaps computing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

BLOCK_TOKENS = 16
STEP_TOKENS = 8_192
"""Tokens of prompts and answers in one step: vLLM's default on a large GPU."""


@dataclass(frozen=True, kw_only=True)
class LlmStepCosts:
    """What a step takes. It reads all weights, and the KV cache of each sequence that it computes;
    meanwhile it computes `flops_a_token` for each token. `overhead_us`: of any step.
    """

    overhead_us: float
    weights_bytes: int
    kv_bytes_a_token: int
    flops_a_token: float
    bytes_per_s: float
    flops_per_s: float

    def step_us(self, tokens: int, context_tokens: int) -> float:
        """Returns the time of a step of `tokens`, over sequences of `context_tokens` together."""
        read_bytes = self.weights_bytes + context_tokens * self.kv_bytes_a_token
        read_us = 1e6 * read_bytes / self.bytes_per_s
        compute_us = 1e6 * tokens * self.flops_a_token / self.flops_per_s
        return self.overhead_us + max(read_us, compute_us)


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its answer. `computed`: tokens in the KV cache; `written`: of the answer."""

    prompt_tokens: int
    answer_tokens: int
    computed: int = 0
    written: int = 0
    blocks: int = 0

    @property
    def left(self) -> int:
        """Tokens that the next steps compute before one of the answer is written."""
        return self.prompt_tokens + self.written - self.computed


class PagedEngine:
    """One server. A step costs O(sequences in progress)."""

    def __init__(self, costs: LlmStepCosts, *, kv_bytes: int, sequences_max: int) -> None:
        """`kv_bytes`: of the KV cache; `sequences_max`: in progress at a time."""
        self._costs = costs
        self._free = kv_bytes // (BLOCK_TOKENS * costs.kv_bytes_a_token)
        self._blocks = self._free
        self._sequences_max = sequences_max
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Takes a question. It must fit the KV cache alone."""
        tokens = sequence.prompt_tokens + sequence.answer_tokens
        assert -(-tokens // BLOCK_TOKENS) <= self._blocks, "a sequence fits the KV cache"
        self._waiting.append(sequence)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._running and not self._waiting

    @property
    def waiting(self) -> int:
        """Questions that are not in progress."""
        return len(self._waiting)

    def step(self) -> tuple[float, int]:
        """Computes one step. Returns its time in us, and how many answers it ended."""
        room, parts, before = STEP_TOKENS, [], self.preemptions
        at = 0
        while at < len(self._running):  # those in progress first, the oldest first
            one = self._running[at]
            part = min(one.left, room)
            if part == 0 or not self._take(one, part):
                break
            room -= part
            parts.append((one, part))
            at += 1
        is_full = at < len(self._running) or self.preemptions > before
        while self._waiting and room and not is_full and len(self._running) < self._sequences_max:
            one = self._waiting[0]
            part = min(one.left, room)
            needed = -(-part // BLOCK_TOKENS)
            if needed > self._free:
                break
            self._waiting.popleft()
            self._running.append(one)
            self._free, one.blocks = self._free - needed, needed
            room -= part
            parts.append((one, part))
        return self._end(parts)

    def check_integrity(self) -> None:
        """Checks that no block is lost or used twice."""
        used = sum(one.blocks for one in self._running)
        assert self._free >= 0 and self._free + used == self._blocks
        assert all(one.blocks == 0 for one in self._waiting)

    def _take(self, one: Sequence, part: int) -> bool:
        """Takes blocks for `part` more tokens, and preempts the newest sequences for them.

        Returns False where the newest is `one` itself.
        """
        needed = -(-(one.computed + part) // BLOCK_TOKENS) - one.blocks
        while needed > self._free:
            victim = self._running.pop()
            self._free, victim.blocks, victim.computed = self._free + victim.blocks, 0, 0
            self._waiting.appendleft(victim)
            self.preemptions += 1
            if victim is one:
                return False
        self._free, one.blocks = self._free - needed, one.blocks + needed
        return True

    def _end(self, parts: list[tuple[Sequence, int]]) -> tuple[float, int]:
        tokens = context = ended = 0
        for one, part in parts:
            one.computed += part
            tokens, context = tokens + part, context + one.computed
            if one.left == 0:
                one.written += 1
                if one.written == one.answer_tokens:
                    self._free, one.blocks = self._free + one.blocks, 0
                    ended += 1
        if ended:
            self._running = [one for one in self._running if one.written < one.answer_tokens]
        return self._costs.step_us(tokens, context), ended
