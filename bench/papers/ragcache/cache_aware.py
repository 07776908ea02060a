"""Orders of prompts to compare with: RAGCache's (RAGCache, section 5.2), and that of arrival."""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.cached_prefixes import CachedPrefixes


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
