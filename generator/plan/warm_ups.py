"""Which passages are warmed while a search runs? Events of queries in, warm-ups out. Pure.

A *warm-up* computes the beginning of a prompt, up to the end of some passages, while the search for
its query runs. A query has at most one at a time. The driver tells one policy the events of all
queries, in the order of time, and does what it returns. A policy sees these events and the load of
the LLM server, nothing else.

`WarmUps` starts and cancels warm-ups for a prefix of each draft. A prompt is computed from its
first token on, so only a prefix can be warm. A warm-up that the last draft contradicts is cancelled
and the prefix computed again (AquaPipe, section 4.3, re-prefill): vLLM cannot remove a passage from
the middle of what it has cached.

`Likely` warms the passages that are final often enough: it counts how many earlier drafts in the
same state of their search began with as many final passages. Another index or order of clusters
needs no other setting. While little is counted, it warms the passages that stayed the first ones
for an eighth of the clusters.

`Auto` is another policy, while it pays. It does nothing until searches are known to take long, and
while those with warm-ups do not wait less for their first token than those without: some queries
with drafts are not warmed, on purpose, to compare; while warm-ups do not pay, a few are, to notice
a change. A warm-up begins on an idle server only, because it makes steps of others longer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLoad:
    """The load of the LLM server.

    `in_flight`: requests that it has, warm-ups among them. `waiting`: prompts that are not sent
    yet. `limit`: requests that it may have.
    """

    in_flight: int
    waiting: int
    limit: int

    @property
    def has_room(self) -> bool:
        """Whether the server takes one more request while no prompt waits."""
        return not self.waiting and self.in_flight < self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftFound:
    """A draft arrived: what a search has found in `clusters_done` of its `clusters_total`.

    `passages`: ids of the passages that a prompt would have, best first. Drafts may be missing, but
    they arrive in their order.
    """

    query: str
    passages: tuple[str, ...]
    clusters_done: int
    clusters_total: int
    at_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchEnded:
    """The final passages of a query arrived. Its warm-up, if one runs, is ended by the driver."""

    query: str
    passages: tuple[str, ...]
    at_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUpEnded:
    """A warm-up ended by itself. `is_done` False: it failed, or a prompt needed its slot.

    It does not arrive for a warm-up that the policy cancelled, nor after `SearchEnded`.
    """

    query: str
    is_done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryAnswered:
    """The last event of a query: it was answered, or the driver forgets it. `wait_us`: from the end
    of its search to the first token; None: not comparable with other queries.
    """

    query: str
    wait_us: int | None = None


SpeculationEvent = DraftFound | SearchEnded | WarmUpEnded | QueryAnswered


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWarmUp:
    """Compute the prompt of the last draft up to the end of these passages, its first ones."""

    query: str
    passages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelWarmUp:
    """End the warm-up of a query. The server keeps what is computed."""

    query: str


SpeculationAction = StartWarmUp | CancelWarmUp


class SpeculationPolicy(Protocol):
    """Decides for all queries of one LLM server. It keeps what it needs of queries in progress.

    Between `SearchEnded` and `QueryAnswered` of a query it starts nothing for it.
    """

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Applies an event; returns the actions to carry out, in this order.

        They may be of other queries than the event's. `load` is that before the actions.
        """
        ...


class NoSpeculation:
    """Implements `SpeculationPolicy`: no warm-ups."""

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Does nothing."""
        return ()


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


SHARE_MIN = 0.75
"""The least share of earlier drafts in the same state whose passages were final. Higher ones waste
less and hide less."""
PRIOR_SEARCHES = 2
"""Passages that stayed for `clusters_to_stay` count as so many earlier searches in the same state
whose passages were final. With more of them the first searches waste more."""
STAY_SHARE = 8
STAY_CLUSTERS_MIN = 2
COUNTED_MAX = 4_000
"""After so many searches in a state its counts are halved, so that new searches weigh more."""
DONE_CLASSES, AGES = 16, 5

State = tuple[int, int, int]
"""Number of first passages, share of the clusters that is done, and age of these passages."""


@dataclass(slots=True)
class _SearchStates:
    draft: Passages = ()
    since: list[int] = field(default_factory=list)  # clusters done when the first n were found
    states: dict[State, Passages] = field(default_factory=dict)


class Likely:
    """Implements `SpeculationPolicy`. A draft costs O(passages), the end of a search O(states)."""

    def __init__(self) -> None:
        self._searches: dict[str, _SearchStates] = {}
        self._seen: Counter[State] = Counter()
        self._right: Counter[State] = Counter()
        self._warm_ups = WarmUps()

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Wishes for the passages that are likely to be final; counts at the end of a search."""
        match event:
            case DraftFound():
                return self._warm_ups.follow(event, self._likely(event), load)
            case WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case SearchEnded():
                self._count(self._searches.pop(event.query, None), event.passages)
            case QueryAnswered():
                self._searches.pop(event.query, None)
        self._warm_ups.forget(event.query)
        return ()

    def _likely(self, event: DraftFound) -> int:
        """Returns how many passages to warm, and remembers the state of each number of them."""
        search = self._searches.setdefault(event.query, _SearchStates())
        same = common(search.draft, event.passages)
        found = len(event.passages) - same
        search.since = search.since[:same] + [event.clusters_done] * found
        search.draft = event.passages
        likely = 0
        for count, since in enumerate(search.since, 1):
            age = event.clusters_done - since
            state = (
                count,
                DONE_CLASSES * event.clusters_done // max(1, event.clusters_total),
                min(AGES, age.bit_length()),  # classes of 0, 1, 2 to 3, 4 to 7 clusters, and so on
            )
            search.states[state] = event.passages[:count]
            prior = PRIOR_SEARCHES * (age >= clusters_to_stay(event.clusters_total))
            # P(final | state) = (right + prior) / (seen + PRIOR_SEARCHES)
            seen, right = self._seen[state] + PRIOR_SEARCHES, self._right[state] + prior
            if likely == count - 1:
                likely += right >= SHARE_MIN * seen
        return likely

    def _count(self, search: _SearchStates | None, final: Passages) -> None:
        if search is None:
            return
        for state, passages in search.states.items():
            self._seen[state] += 1
            self._right[state] += passages == final[: len(passages)]
            if self._seen[state] >= COUNTED_MAX:
                self._seen[state] //= 2
                self._right[state] //= 2


def clusters_to_stay(clusters_total: int) -> int:
    """Returns for how many clusters of a query a passage must keep its rank."""
    return max(STAY_CLUSTERS_MIN, -(-clusters_total // STAY_SHARE))


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Returns how many items both begin with."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


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

    Warm-ups pay while the median wait, from the end of a search to the first token, is lower for
    queries that might be warmed. A draft costs O(`KEPT`) more than it costs the other policy.
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
                    if self._searches_us and median(self._searches_us) >= SEARCH_MIN_US:
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

    def _choose(self) -> bool:
        """Returns whether the next query with drafts may be warmed."""
        self._chosen += 1
        warmed = [wait_us for might_be_warmed, wait_us in self._waits if might_be_warmed]
        others = [wait_us for might_be_warmed, wait_us in self._waits if not might_be_warmed]
        if min(len(warmed), len(others)) < COMPARED_MIN:
            return self._chosen % 2 == 1
        pays = median(warmed) <= (1 - GAIN_MIN) * median(others)
        return pays != (self._chosen % OTHER_EVERY == 0)
