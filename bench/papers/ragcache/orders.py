"""How many prompt tokens does an order save? RAGCache's order (5.2), ours, arrival, an oracle."""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulator.prompt_cache import CacheSize, PromptCache, computed_once, replay
from generator.plan.cached_prefixes import CachedPrefixes

OURS = "cached_prefix"


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
        """Returns the first."""
        return ids[0]


ORDERS: dict[str, type[CachedPrefixes]] = {
    "arrival": Arrival,
    "cache_aware": CacheAware,
    OURS: CachedPrefixes,
}


def order_shares(
    prompts: Sequence[Sequence[int]], size: CacheSize, *, backlog: int
) -> dict[str, float]:
    """Returns the cached share of the tokens by order, with a backlog of so many prompts."""
    found = {
        name: replay(prompts, PromptCache(size), order, backlog=backlog)
        for name, order in ORDERS.items()
    }
    found["oracle"] = computed_once(prompts, size.block_tokens)
    return {name: each.cached_share for name, each in found.items()}
