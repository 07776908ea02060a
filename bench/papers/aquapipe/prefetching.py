"""A pipeline pool that grows as results become stable (AquaPipe, sections 4.1 to 4.3). Pure.

A stage of the search (an iteration there) is a cluster here. The pool is a prefix of the results,
because a prompt has its passages by score and is computed from its first token on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from generator.plan import warm_ups
from generator.plan.warm_ups import Passages, WarmUps


@dataclass(slots=True)
class _Pipeline:
    """One query. `results`: R at the last prefetching; `next_at`: Opt of the next prefetching."""

    results: Passages = ()
    pool: int = 0  # PP.size: the first so many of `results`
    balancer: float = 0.0
    next_at: int = 1


class PrefixPolicy:
    """A `SpeculationPolicy` that keeps the first passages of each draft warm."""

    def __init__(self, wished: Callable[[warm_ups.DraftFound], int]) -> None:
        """`wished`: how many passages of a draft are to be warm."""
        self._wished, self._warm_ups = wished, WarmUps()

    def step(
        self, event: warm_ups.SpeculationEvent, load: warm_ups.EngineLoad
    ) -> tuple[warm_ups.SpeculationAction, ...]:
        """Starts and cancels warm-ups as drafts change. Wrong passages are prefilled again."""
        match event:
            case warm_ups.DraftFound():
                return self._warm_ups.follow(event, self._wished(event), load)
            case warm_ups.WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case warm_ups.SearchEnded() | warm_ups.QueryAnswered():
                self._warm_ups.forget(event.query)
                return ()


class AquaPipe(PrefixPolicy):
    """Prefetches when Equation 1 says so, and removes from the pool what moved. O(passages)."""

    def __init__(self) -> None:
        super().__init__(self._pool_of)
        self._pipelines: dict[str, _Pipeline] = {}

    def _pool_of(self, draft: warm_ups.DraftFound) -> int:
        one = self._pipelines.setdefault(draft.query, _Pipeline())
        self._prefetch(one, draft.passages, draft.clusters_done)
        return one.pool

    def _prefetch(self, one: _Pipeline, found: Passages, done: int) -> None:
        pairs = list(zip(one.results, found, strict=False))
        moved = [place for place, (before, now) in enumerate(pairs) if before != now]
        unstability = sum(place < one.pool for place in moved)
        one.pool = min([one.pool, *moved])  # an element whose position changed is removed (4.2.3)
        if done < one.next_at or not found:
            return
        stability = len(pairs) - len(moved)
        # Balancer_n = (Stability - 4 * Unstability + Balancer_{n-1}) / 2  (3)
        one.balancer = (stability - 4 * unstability + one.balancer) / 2
        # MaxNum = floor((Stability - PP.size + Balancer_n) / 2)  (2)
        number_max = max(0, math.floor((stability - one.pool + one.balancer) / 2))
        # Only elements whose earlier position equals the present one (4.2.3).
        one.pool = max(one.pool, min([one.pool + number_max, len(pairs), *moved]))
        # Opt_{n+1} = Opt_n + floor((PP.size / top-k) * PP.size + 1 - Balancer_n)  (1)
        ahead = math.floor(one.pool / len(found) * one.pool + 1 - one.balancer)
        one.next_at = done + max(1, ahead)
        one.results = found
