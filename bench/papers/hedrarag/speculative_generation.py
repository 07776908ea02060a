"""Fills an underused server with the likeliest drafts (HedraRAG, section 4.3). Pure.

A server is underused while the share of its throughput that is in use is below a threshold. The
search in progress whose best passages are closest to its question is served first, because its
draft is most likely to be final. Use it where many searches are in progress at once.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from bench.simulator.warm_ups import ScoredDraft
from generator.plan import warm_ups
from generator.plan.warm_ups import WarmUps

THRESHOLD = 0.5
"""tau: a server is underused while it has less than this share of its limit of requests."""


class HedraRag:
    """A `SpeculationPolicy`. A draft costs O(searches in progress)."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self._drafts: dict[str, ScoredDraft] = {}
        self._warm_ups = WarmUps()

    def step(
        self, event: warm_ups.SpeculationEvent, load: warm_ups.EngineLoad
    ) -> tuple[warm_ups.SpeculationAction, ...]:
        """Selects drafts, the closest first, until the threshold is reached."""
        actions: list[warm_ups.SpeculationAction] = []
        match event:
            case ScoredDraft():
                self._drafts[event.query] = event
                # The warm-up of a contradicted draft is useless: its slot is free.
                actions += self._warm_ups.follow(event, 0, load)
                load = replace(load, in_flight=load.in_flight - len(actions))
            case warm_ups.WarmUpEnded():
                self._warm_ups.ended(event, load)
                if not event.is_done:
                    return ()
            case warm_ups.SearchEnded() | warm_ups.QueryAnswered():
                self._drafts.pop(event.query, None)
                self._warm_ups.forget(event.query)
        for draft in sorted(self._drafts.values(), key=_distance):
            # T_curr / T_max < tau
            if load.in_flight / load.limit >= self._threshold:
                break
            for action in self._warm_ups.follow(draft, len(draft.passages), load):
                actions.append(action)
                begun = 1 if isinstance(action, warm_ups.StartWarmUp) else -1
                load = replace(load, in_flight=load.in_flight + begun)
        return tuple(actions)


def _distance(draft: ScoredDraft) -> tuple[float, str]:
    return -fmean(draft.scores or [0.0]), draft.query
