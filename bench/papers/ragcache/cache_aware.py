"""RAGCache's order: most cached tokens for each token to compute (RAGCache, section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from generator.plan.cached_prefixes import CachedPrefixes


def cache_aware(prefixes: CachedPrefixes) -> Callable[[Sequence[int]], int]:
    """Returns how the next prompt is chosen: the largest ratio of cached to computed tokens.

    If equal, and while no blocks are known, it is the first. The paper's window, within which each
    request is processed, is the queue's: every 16th prompt is the oldest. The order ranks prompts
    of which nothing is cached as equal: ours does better with a large backlog. Cost: O(prompts).
    """
    # OrderPriority = Cached Length / Computation Length
    return lambda ids: max(ids, key=lambda id: prefixes.cached_over_computed(id) or 0.0)
