"""The order of arrival, each prompt with its passages by score. Knows nothing of the cache."""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.order.protocol import NextPrompt


class Arrival:
    """First come, first served. Use it for servers without KV events. Cost: O(1)."""

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        """Returns the one that came first."""
        return NextPrompt(id=ids[0])
