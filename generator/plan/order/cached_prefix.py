"""An order for a large backlog: cached prefixes first, then those that many prompts share."""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.order.cached_prefixes import CachedPrefixes
from generator.plan.order.protocol import NextPrompt


class CachedPrefix:
    """Uses what is cached; where nothing is, begins the prefix that costs least for each prompt.

    While some prompts have more cached than others, the next one is RAGCache's: with the largest
    ratio of cached to computed tokens. Otherwise all prompts have to be computed from the same
    place on. Then the next one is the one with the least

        cost = computed tokens / prompts that use them

    where another waiting prompt counts by the share of these tokens that it has too. So a prefix of
    many prompts is computed once for all of them. A prompt alone goes early if it is short: it
    holds a place in the backlog, and a long one has more to gain if another comes. With a backlog
    of a few prompts it is not better than `CacheAware`. Cost: O(prompts), 0.3 us each, and
    O(blocks) for each prompt that shares an uncached block with one that came or left.
    """

    def __init__(self, prefixes: CachedPrefixes) -> None:
        self._prefixes = prefixes

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        """Returns the first one while nothing is known."""
        if self._prefixes.tree.is_blind:
            return NextPrompt(id=ids[0])
        cached = [(id, found) for id in ids if (found := self._prefixes.cached(id)) is not None]
        if not cached:
            return NextPrompt(id=ids[0])
        id, best = max(cached, key=lambda pair: pair[1].cached_over_computed)
        if best.cached_tokens > min(found.cached_tokens for _, found in cached):
            return NextPrompt(id=id, form=best.form)
        starts = [(id, start) for id in ids if (start := self._prefixes.start(id)) is not None]
        id, start = min(starts, key=lambda pair: pair[1].cost)
        return NextPrompt(id=id, form=start.form)
