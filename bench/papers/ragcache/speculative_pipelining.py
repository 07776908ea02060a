"""Warms the whole draft each time that it changes (RAGCache, Algorithm 2). Pure.

Not for searches whose drafts change often, unless a computation that is cancelled ends at once:
each change costs what was computed behind the first passage that changed.
"""

from __future__ import annotations

from dataclasses import replace

from generator.plan import warm_ups

MAX_PREFILL_BS = 4
"""No warm-up begins while the server has so many requests, warm-ups among them."""


class RagCache:
    """A `SpeculationPolicy`, line by line. An event costs O(passages)."""

    def __init__(self, max_prefill_bs: int = MAX_PREFILL_BS) -> None:
        self._max_prefill_bs = max_prefill_bs
        self._last: dict[str, tuple[str, ...]] = {}  # D
        self._in_pool: set[str] = set()

    def step(
        self, event: warm_ups.SpeculationEvent, load: warm_ups.EngineLoad
    ) -> tuple[warm_ups.SpeculationAction, ...]:
        """Begins again when a draft differs from the last one."""
        match event:
            case warm_ups.DraftFound():
                return self._stage(event, load)
            case warm_ups.WarmUpEnded():
                self._in_pool.discard(event.query)
            case warm_ups.SearchEnded() | warm_ups.QueryAnswered():
                self._in_pool.discard(event.query)
                self._last.pop(event.query, None)
        return ()

    def _stage(
        self, event: warm_ups.DraftFound, load: warm_ups.EngineLoad
    ) -> tuple[warm_ups.SpeculationAction, ...]:
        # if D_temp != D
        if event.passages == self._last.get(event.query):
            return ()
        self._last[event.query] = event.passages
        actions: list[warm_ups.SpeculationAction] = []
        # if {request, D} in pool: terminate it after the current iteration
        if event.query in self._in_pool:
            self._in_pool.remove(event.query)
            actions.append(warm_ups.CancelWarmUp(query=event.query))
            load = replace(load, in_flight=load.in_flight - 1)
        # if pool.size < max_prefill_bs: pool.insert({request, D_temp})
        if event.passages and load.has_room and load.in_flight < self._max_prefill_bs:
            self._in_pool.add(event.query)
            actions.append(warm_ups.StartWarmUp(query=event.query, passages=event.passages))
        return tuple(actions)
