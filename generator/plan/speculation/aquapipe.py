"""`aquapipe`: a pipeline pool that grows as results become stable (AquaPipe, section 4). Pure.

A stage of the search (an iteration there) is a cluster here. The pool is a prefix of the result
set, because a prompt has its passages by score and is computed from its first token on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from generator.plan.speculation.protocol import (
    DraftFound,
    EngineLoad,
    QueryAnswered,
    SearchEnded,
    SpeculationAction,
    SpeculationEvent,
    WarmUpEnded,
)
from generator.plan.speculation.warm_ups import Passages, WarmUps

CHUNK_US = 60_000
"""Fixed cost of a prefill, beside that of its tokens: one more step of the server."""


@dataclass(slots=True)
class _Pipeline:
    """One query. `results`: R at the last prefetching; `next_at`: Opt of the next prefetching."""

    results: Passages = ()
    pool: int = 0  # PP.size: the first so many of `results`
    balancer: float = 0.0
    next_at: int = 1
    prefetched_at_us: int | None = None
    interval_us: int = 0  # between the last two prefetchings


class AquaPipe:
    """Implements `SpeculationPolicy`. A draft costs O(passages).

    Wrong elements are corrected by re-prefill alone: vLLM cannot remove a passage from its cache.
    """

    def __init__(self, chunk_us: int = CHUNK_US) -> None:
        """`chunk_us`: the extra cost of one more prefill; 0: each passage is begun at once."""
        self._chunk_us = chunk_us
        self._pipelines: dict[str, _Pipeline] = {}
        self._warm_ups = WarmUps()

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Prefetches when Equation 1 says so, and removes from the pool what moved."""
        match event:
            case DraftFound():
                one = self._pipelines.setdefault(event.query, _Pipeline())
                # An element of PP whose position changed is removed from PP (4.2.3).
                moved = unequal(one.results, event.passages)
                pool = min([one.pool, *moved])
                if event.clusters_done >= one.next_at:
                    pool = self._prefetch(one, event, moved, pool)
                one.pool = pool
                return self._warm_ups.follow(event, self._chunk(one, event), load)
            case WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case SearchEnded() | QueryAnswered():
                self._warm_ups.forget(event.query)
                self._pipelines.pop(event.query, None)
                return ()

    def _prefetch(self, one: _Pipeline, event: DraftFound, moved: list[int], pool: int) -> int:
        """Returns the new size of the pool."""
        top_k = len(event.passages)
        stability = min(len(one.results), top_k) - len([at for at in moved if at < top_k])
        unstability = sum(at < one.pool for at in moved)
        # Balancer_n = (Stability - 4 * Unstability + Balancer_{n-1}) / 2  (3)
        one.balancer = (stability - 4 * unstability + one.balancer) / 2
        # MaxNum = floor((Stability - PP.size + Balancer_n) / 2)  (2)
        number_max = max(0, math.floor((stability - pool + one.balancer) / 2))
        # Only elements whose earlier position equals the present one (4.2.3).
        same = min([min(len(one.results), top_k), *moved])
        pool = max(pool, min(pool + number_max, same))
        # Opt_{n+1} = Opt_n + floor((PP.size / top-k) * PP.size + 1 - Balancer_n)  (1)
        ahead = math.floor(pool / top_k * pool + 1 - one.balancer) if top_k else 1
        one.next_at = event.clusters_done + max(1, ahead)
        if one.prefetched_at_us is not None:
            one.interval_us = event.at_us - one.prefetched_at_us
        one.prefetched_at_us = event.at_us
        one.results = event.passages
        return pool

    def _chunk(self, one: _Pipeline, event: DraftFound) -> int:
        """Returns how much of the pool to prefill now (4.4).

        One more chunk costs `chunk_us`. A chunk that is prefilled before the next element arrives
        overlaps with the search. So a pipeline whose elements arrive faster collects more of them
        in a chunk.
        """
        is_full = one.pool == len(event.passages)
        if is_full or one.interval_us >= self._chunk_us:
            return one.pool
        running = self._warm_ups.running(event.query)
        return min(one.pool, len(running or ()))


def unequal(one: Passages, other: Passages) -> list[int]:
    """Returns the positions, of both, at which they differ."""
    return [
        place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right
    ]
