"""RAGCache's order: most cached tokens for each token to compute (RAGCache, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.order.cached_prefixes import CachedPrefixes
from generator.plan.order.protocol import NextPrompt


class CacheAware:
    """The prompt with the largest ratio of cached to computed tokens; if equal, the first.

    The paper's window, within which each request is processed, is the bound of overtaking here.
    It ranks prompts of which nothing is cached by length alone: `CachedPrefix` does better with a
    large backlog. Cost: O(prompts).
    """

    def __init__(self, prefixes: CachedPrefixes) -> None:
        self._prefixes = prefixes

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        """Returns the first prompt while no blocks of prompts are known."""
        # OrderPriority = Cached Length / Computation Length
        best, best_ratio = NextPrompt(id=ids[0]), -1.0
        if self._prefixes.tree.is_blind:
            return best
        for id in ids:
            found = self._prefixes.cached(id)
            if found is not None and found.cached_over_computed > best_ratio:
                best = NextPrompt(id=id, form=found.form)
                best_ratio = found.cached_over_computed
        return best
