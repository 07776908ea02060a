"""Which LLM servers may take the next prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from generator.plan.health import DispatchServer

LEAD_MAX = 1
"""A server takes the prompt of which it has most cached only if it has at most so many requests
more than the least loaded server. With a higher value, few servers get nearly all prompts while the
load is low."""


def takers(servers: Sequence[DispatchServer]) -> Iterator[list[int]]:
    """Yields the proven servers with a free slot: the least loaded ones, the first one first; then
    those that may take what these may not.
    """
    free = [place for place, one in enumerate(servers) if one.has_room and one.is_proven]
    free.sort(key=lambda place: servers[place].load())
    while free:
        least = servers[free[0]].load()
        group = [place for place in free if servers[place].load(LEAD_MAX) <= least]
        yield group
        free = [place for place in free if place not in group]
