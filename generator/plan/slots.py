"""Which LLM servers may take the next prompt, and which slots are kept for interactive ones. Pure.

A prompt of a batch leaves kept slots free, so an interactive one that comes waits for none to end.
Interactive prompts take every slot; then as many become free again when prompts of a batch end. One
prompt of a batch may always be at a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from generator.plan.health import DispatchServer
from generator.plan.queue import QueuedPrompt

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


def kept_servers(
    servers: Sequence[DispatchServer], in_flight: Iterable[QueuedPrompt], slots: int
) -> list[int]:
    """Returns the servers whose free slots are kept now, if `slots` are kept at each."""
    used = [place for place, one in enumerate(servers) if one.in_flight >= one.concurrency - slots]
    with_batch = {queued.server for queued in in_flight if queued.prompt.is_batch}
    return [place for place in used if place in with_batch]
