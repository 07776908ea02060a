"""Cached tokens by order (RAGCache 5.2), and by what leaves host memory first (5.1).

Orders: RAGCache's, ours, arrival, an oracle. Host memory: vLLM's LRU and ARC, PGDSF, an oracle.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from bench.simulator.prompt_cache import CacheSize, PromptCache, computed_once, replay
from carpool.vllm import KvHostPolicy
from generator.plan.cached_prefixes import CachedPrefixes

OURS = "cached_prefix"
Prompts = Sequence[Sequence[int]]


class CacheAware(CachedPrefixes):
    """Chooses the prompt with most cached tokens for each token to compute.

    The paper's window, within which each request is processed, is the queue's: every 16th prompt is
    the oldest. The order ranks prompts of which nothing is cached as equal: ours does better with a
    large backlog.
    """

    def choose(self, ids: Sequence[int]) -> int:
        """If equal, and while no blocks are known, it is the first. O(prompts)."""
        # OrderPriority = Cached Length / Computation Length
        return max(ids, key=lambda id: self.cached_over_computed(id) or 0.0)


class Arrival(CachedPrefixes):
    """Chooses the prompt that came first."""

    def choose(self, ids: Sequence[int]) -> int:
        return ids[0]


ORDERS: dict[str, type[CachedPrefixes]] = {
    "arrival": Arrival,
    "cache_aware": CacheAware,
    OURS: CachedPrefixes,
}


def order_shares(prompts: Prompts, size: CacheSize, *, backlog: int) -> dict[str, float]:
    """Returns the cached share of the tokens by order, with a backlog of so many prompts."""
    found = {
        name: replay(prompts, PromptCache(size), order, backlog=backlog)
        for name, order in ORDERS.items()
    }
    found["oracle"] = computed_once(prompts, size.block_tokens)
    return {name: each.cached_share for name, each in found.items()}


class FarthestNextUse:
    """The chunk whose next use is farthest in the future goes first. It knows all prompts.

    It stands in for a policy of vLLM. Not quite the optimum: it keeps chunks that the GPU has too.
    """

    def __init__(self, prompts: Prompts, server: PromptCache) -> None:
        self._server = server
        self._chunks: dict[bytes, Any] = {}
        self._uses: dict[bytes, list[int]] = {}
        self._place: dict[bytes, int] = {}
        for number, prompt in enumerate(prompts):
            for place, name in enumerate(server.block_names(prompt)):
                self._uses.setdefault(name, []).append(number)
                self._place[name] = place

    def get(self, key: bytes) -> Any:
        return self._chunks.get(key)

    def insert(self, key: bytes, chunk: Any) -> None:
        self._chunks[key] = chunk

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None:
        """Evicts `n` chunks, or none. O(chunks)."""
        free = [
            key
            for key, chunk in self._chunks.items()
            if chunk.ref_cnt == 0 and key not in protected
        ]
        if len(free) < n:
            return None
        return [(key, self._chunks.pop(key)) for key in heapq.nlargest(n, free, key=self._next_use)]

    def _next_use(self, key: bytes) -> tuple[float, int]:
        name = key[:-4]  # behind the name is the group of layers
        uses = self._uses[name]
        at = bisect_left(uses, self._server.added)
        return (uses[at] if at < len(uses) else float("inf"), self._place[name])

    def __getattr__(self, name: str) -> Any:
        """What vLLM says of the past is ignored."""
        return lambda *_: None


def host_shares(prompts: Prompts, gpu: CacheSize, factor: int) -> dict[str, float]:
    """Returns the cached share of the tokens by policy; the prompts are sent as they arrive.

    `factor`: the host's memory over the GPU's; 0: none.
    """
    size = replace(gpu, host_blocks=factor * gpu.blocks)
    policies: tuple[KvHostPolicy, ...] = get_args(KvHostPolicy)
    servers: dict[str, PromptCache] = {
        policy: PromptCache(replace(size, host_policy=policy)) for policy in policies
    }
    if factor == 0:
        servers = {"none": PromptCache(size)}
    else:
        servers["oracle"] = PromptCache(size)
        servers["oracle"].replace_host_policy(FarthestNextUse(prompts, servers["oracle"]))
    return {
        name: replay(prompts, server, Arrival, backlog=gpu.concurrency).cached_share
        for name, server in servers.items()
    }
