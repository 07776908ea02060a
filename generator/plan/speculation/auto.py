"""`auto`: another policy, while it pays. Pure.

It does nothing until searches are known to take long, and while those with warm-ups do not wait
less for their first token than those without: some queries with drafts are not warmed, on purpose,
to compare; while warm-ups do not pay, a few are, to notice a change. A warm-up begins on an idle
server only, because it makes a step longer for all that are in it, and whether it pays is not known
at first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median

from generator.plan.speculation.protocol import (
    DraftFound,
    EngineLoad,
    QueryAnswered,
    SearchEnded,
    SpeculationAction,
    SpeculationEvent,
    SpeculationPolicy,
    WarmUpEnded,
)

SEARCH_MIN_US = 100_000
"""From the first draft to the end of a search. Shorter ones do not hide a step of a server."""
KEPT = 200
"""The last so many waits are compared, warmed and not warmed together."""
OTHER_EVERY = 8
"""One query in so many gets the opposite choice, for comparison."""
COMPARED_MIN = 10
"""With fewer waits of a kind it is unknown whether warm-ups pay; every second query is warmed."""
GAIN_MIN = 0.02
"""The least share by which the median wait must be lower."""


class Auto:
    """Implements `SpeculationPolicy`. The first draft of a query decides whether it may be warmed.

    The wait of a query is the time from the end of its search to its first token. Warm-ups pay
    while the median wait of the last queries that might be warmed is lower than that of the others.
    A draft costs O(`KEPT`) beside what it costs the other policy.
    """

    def __init__(self, policy: SpeculationPolicy) -> None:
        """`policy`: decides for the queries that may be warmed."""
        self._policy = policy
        self._may_be_warmed: dict[str, bool] = {}
        self._chosen = 0
        self._waits: deque[tuple[bool, int]] = deque(maxlen=KEPT)  # might it be warmed?
        self._first_draft_us: dict[str, int] = {}
        self._searches_us: deque[int] = deque(maxlen=KEPT)

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Passes on what happens to queries that may be warmed."""
        query = event.query
        load = replace(load, limit=min(load.limit, 1))  # it has room while it is idle
        match event:
            case DraftFound():
                if query not in self._first_draft_us:
                    self._first_draft_us[query] = event.at_us
                    if self._takes_long():
                        self._may_be_warmed[query] = self._choose()
            case SearchEnded():
                first_us = self._first_draft_us.pop(query, None)
                if first_us is not None:
                    self._searches_us.append(event.at_us - first_us)
            case QueryAnswered():
                self._first_draft_us.pop(query, None)
                chosen = self._may_be_warmed.pop(query, None)
                if chosen is not None and event.wait_us is not None:
                    self._waits.append((chosen, event.wait_us))
                return self._policy.step(event, load) if chosen else ()
            case WarmUpEnded():
                pass
        return self._policy.step(event, load) if self._may_be_warmed.get(query) else ()

    def _takes_long(self) -> bool:
        return bool(self._searches_us) and median(self._searches_us) >= SEARCH_MIN_US

    def _choose(self) -> bool:
        """Returns whether the next query with drafts may be warmed."""
        self._chosen += 1
        warmed = [wait_us for might_be_warmed, wait_us in self._waits if might_be_warmed]
        others = [wait_us for might_be_warmed, wait_us in self._waits if not might_be_warmed]
        if min(len(warmed), len(others)) < COMPARED_MIN:
            return self._chosen % 2 == 1
        pays = median(warmed) <= (1 - GAIN_MIN) * median(others)
        return pays != (self._chosen % OTHER_EVERY == 0)
