"""An order for a large backlog: cached prefixes first, then those that many prompts share."""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.order.cached_prefixes import CachedPrefixes
from generator.plan.order.protocol import NextPrompt


class CachedPrefix:
    """Chooses what is cached; else the prefix that costs least for each prompt that shares it.

    While some prompts have more cached than others, the next prompt is RAGCache's: the one with the
    largest ratio of cached to computed tokens. Otherwise all prompts have to be computed from the
    same position on. Then the next prompt is the one with the least

        cost = computed tokens / prompts that use them

    where another waiting prompt counts by the share of these tokens that it has too. So a prefix of
    many prompts is computed once for all of them. A prompt that shares no prefix goes early if it
    is short: a long one may save more if a prompt with the same prefix arrives. Cost: O(prompts),
    and O(blocks) for each prompt that shares an uncached block with one that came or left.
    """

    def __init__(self, prefixes: CachedPrefixes) -> None:
        self._prefixes = prefixes

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        """Returns the first prompt while no blocks of prompts are known."""
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
