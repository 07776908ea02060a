"""Starts and cancels warm-ups for policies that wish for a prefix of each draft. Pure.

A prompt is computed from its first token on, so only a prefix can be warm. A warm-up that the last
draft contradicts is cancelled and the prefix computed again (AquaPipe, section 4.3, re-prefill):
vLLM cannot remove a passage from the middle of what it has cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from generator.plan.speculation.protocol import (
    CancelWarmUp,
    DraftFound,
    EngineLoad,
    SpeculationAction,
    StartWarmUp,
    WarmUpEnded,
)

Passages = tuple[str, ...]


@dataclass(slots=True)
class _QueryWarmUps:
    draft: Passages = ()
    wish: Passages = ()
    running: Passages | None = None
    warm: list[Passages] = field(default_factory=list)


class WarmUps:
    """The warm-ups of all queries whose search runs. An event costs O(warm-ups of its query)."""

    def __init__(self) -> None:
        self._queries: dict[str, _QueryWarmUps] = {}

    def follow(
        self, event: DraftFound, passages: int, load: EngineLoad
    ) -> tuple[SpeculationAction, ...]:
        """Takes a draft. Its policy wishes for the first `passages` of it.

        Cancels the warm-up that the draft contradicts. Starts a warm-up unless these passages are
        warm, another warm-up of the query runs, or the server has no room.
        """
        one = self._queries.setdefault(event.query, _QueryWarmUps())
        one.draft, one.wish = event.passages, event.passages[:passages]
        if one.running is None or one.draft[: len(one.running)] == one.running:
            return self._start(event.query, one, load)
        one.running = None
        room = replace(load, in_flight=load.in_flight - 1)
        return (CancelWarmUp(query=event.query), *self._start(event.query, one, room))

    def ended(self, event: WarmUpEnded, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Takes the end of a warm-up; starts what is wished for and not warm."""
        one = self._queries.get(event.query)
        if one is None or one.running is None:
            return ()
        if event.is_done:
            one.warm.append(one.running)
        one.running = None
        return self._start(event.query, one, load) if event.is_done else ()

    def forget(self, query: str) -> None:
        """The search of a query has ended, or its driver forgets it."""
        self._queries.pop(query, None)

    def _start(
        self, query: str, one: _QueryWarmUps, load: EngineLoad
    ) -> tuple[SpeculationAction, ...]:
        wish = one.wish
        is_warm = any(passages[: len(wish)] == wish for passages in (*one.warm, ()))
        if is_warm or one.running is not None or not load.has_room:
            return ()
        one.running = wish
        return (StartWarmUp(query=query, passages=wish),)
