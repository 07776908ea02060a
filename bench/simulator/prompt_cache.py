"""A model of vLLM's prefix cache: which tokens of a prompt are cached when its request starts.

Memory is blocks of a fixed number of tokens. A full block is named by a digest of all tokens from
the beginning of the prompt to its end, so an equal name is an equal prefix. A request that runs
holds its blocks. When it ends, they join the queue of free blocks: those with a name at its end,
the last block of the prompt first, those without a name at its front. A new block is the first of
the queue, and its old name is forgotten: LRU over blocks, and of a prompt the end goes first. A
prompt whose first blocks are cached takes them out of the queue.

Time is not modelled: requests end in the order in which they started, when another request needs
their slot. Preemption is not modelled: a request starts when all its blocks are free.

`replay` sends prompts through the generator's own queue to it; `computed_once` is its oracle.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from generator.plan.cached_prefixes import CachedPrefixes, blocks_of
from generator.plan.kv_tree import (
    BlockDigest,
    BlocksRemoved,
    BlocksStored,
    KvBatch,
    KvEvent,
    KvTree,
    digests_of,
)
from generator.plan.queue import Prompt, PromptQueue, QueuedPrompt


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSize:
    """Memory and load of a server: `blocks` of `block_tokens`, `concurrency` requests that run.

    `output_tokens`: of each answer; they take blocks while their request runs, and afterwards.
    """

    blocks: int
    block_tokens: int = 32
    concurrency: int = 8
    output_tokens: int = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCounts:
    """Tokens of a prompt, or of all prompts of a run."""

    cached: int
    computed: int

    @property
    def cached_share(self) -> float:
        """The share of the prompt tokens that were cached."""
        return self.cached / (self.cached + self.computed)


class BlockSimulator:
    """The prefix cache of one server. Deterministic; a start costs O(blocks of the prompt)."""

    def __init__(self, size: CacheSize) -> None:
        self._size = size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size.blocks))
        self._users = [0] * size.blocks
        self._name_of: list[BlockDigest | None] = [None] * size.blocks
        self._blocks_of: dict[BlockDigest, list[int]] = {}
        self._running: deque[list[int]] = deque()
        self._started = 0
        self._events: list[KvEvent] = []

    def start(self, token_ids: Sequence[int]) -> TokenCounts:
        """Starts the request of a prompt, and ends others whose slot or blocks it needs.

        Raises `ValueError` for a prompt that does not fit the memory.
        """
        size = self._size
        self._started += 1
        output = [-self._started] * size.output_tokens  # tokens of no prompt and no other answer
        tokens = [*token_ids, *output]
        names = digests_of(tokens, block_tokens=size.block_tokens)
        needed = -(-len(tokens) // size.block_tokens)
        if needed > size.blocks:
            raise ValueError(f"a prompt of {needed} blocks does not fit {size.blocks}")
        if len(self._running) >= size.concurrency:
            self._end_oldest()
        # One token at least is computed: the answer begins with what follows the last token.
        held = self._take_cached(names[: (len(token_ids) - 1) // size.block_tokens])
        cached = len(held)
        while needed - cached > len(self._free):
            self._end_oldest()
        for place in range(cached, needed):
            held.append(self._take_new(names[place] if place < len(names) else None))
        if len(names) > cached:
            self._events.append(
                BlocksStored(
                    names=names[cached:],
                    parent=names[cached - 1] if cached else None,
                    token_ids=tokens[cached * size.block_tokens : len(names) * size.block_tokens],
                )
            )
        self._running.append(held)
        cached_tokens = cached * size.block_tokens
        return TokenCounts(cached=cached_tokens, computed=len(token_ids) - cached_tokens)

    def take_batch(self, seq: int) -> KvBatch:
        """Returns what was stored and removed since the last call, as the server would say it."""
        events, self._events = tuple(self._events), []
        return KvBatch(seq=seq, events=events)

    def check_integrity(self) -> None:
        """Asserts that each block is free or held, and that names and blocks agree."""
        held = [block for blocks in self._running for block in blocks]
        assert sum(self._users) == len(held)
        assert set(held).isdisjoint(self._free)
        assert len(self._free) + len(set(held)) == self._size.blocks
        for name, blocks in self._blocks_of.items():
            assert all(self._name_of[block] == name for block in blocks)

    def _take_cached(self, names: Sequence[BlockDigest]) -> list[int]:
        held: list[int] = []
        for name in names:
            if name not in self._blocks_of:
                break
            block = self._blocks_of[name][0]
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1
            held.append(block)
        return held

    def _take_new(self, name: BlockDigest | None) -> int:
        block, _ = self._free.popitem(last=False)
        old = self._name_of[block]
        if old is not None:
            self._blocks_of[old].remove(block)
            if not self._blocks_of[old]:
                del self._blocks_of[old]
            self._events.append(BlocksRemoved(names=(old,)))
        self._name_of[block] = name
        if name is not None:
            self._blocks_of.setdefault(name, []).append(block)
        self._users[block] = 1
        return block

    def _end_oldest(self) -> None:
        for block in reversed(self._running.popleft()):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if self._name_of[block] is None:
                    self._free.move_to_end(block, last=False)


def replay(
    prompts: Sequence[Sequence[int]],
    size: CacheSize,
    order: type[CachedPrefixes],
    *,
    backlog: int,
) -> TokenCounts:
    """Sends prompts, token ids each, as the generator would, from a backlog of so many."""
    tree = KvTree()
    queue = PromptQueue(order(tree))
    server = BlockSimulator(size)
    arriving, waiting = enumerate(prompts), 0
    cached = computed = 0
    for seq in itertools.count():
        for id, prompt in itertools.islice(arriving, backlog - waiting):
            queue.add(QueuedPrompt(Prompt(id=id, arrival_us=id, token_ids=prompt)))
            waiting += 1
        queued = queue.take_next(now_us=0)
        if queued is None:
            break
        waiting -= 1
        found = server.start(prompts[queued.prompt.id])
        cached, computed = cached + found.cached, computed + found.computed
        queue.cache_changed(tree.step(server.take_batch(seq)))
    return TokenCounts(cached=cached, computed=computed)


def computed_once(prompts: Sequence[Sequence[int]], block_tokens: int) -> TokenCounts:
    """Returns what no order surpasses.

    No block is computed twice: all prompts are known in advance, and memory has no bound. What
    follows the last full block is computed for each prompt, also for an equal one.
    """
    blocks = [blocks_of(prompt, block_tokens) for prompt in prompts]
    digests = {digest for each in blocks for digest in each.digests}
    rest = sum(each.tokens - block_tokens * len(each.digests) for each in blocks)
    computed = block_tokens * len(digests) + rest
    return TokenCounts(cached=sum(map(len, prompts)) - computed, computed=computed)
