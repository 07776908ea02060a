"""One query after the other, in the order of the groups (CaGR-RAG, Alg. 1 step 4): the published
way, and the baseline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

import numpy as np

from bench.baselines.cluster_cache import Arrival, ClusterCache
from bench.baselines.read_steps import uncut
from carpool.clock import Clock
from schemas.record import ClusterId
from schemas.retrieval import Probe
from searcher.events import EventLog
from searcher.executor import Finish, Search, SearchGroup, SearchResult
from searcher.plan.slices import SliceId
from searcher.scoring.flat import FlatKernel
from searcher.scoring.kernel import QueryBatch, Scoring
from searcher.scoring.scan import scan
from searcher.scoring.top_k import TopTable


class QueryByQuery:
    """Implements `Executor`: each cluster is scored as it arrives, for one query."""

    def __init__(self, cache: ClusterCache, clock: Clock, events: EventLog) -> None:
        self._cache = cache
        self._table = TopTable()
        self._kernel = FlatKernel()
        self._clock = clock
        self._events = events
        self._changed = threading.Condition()
        self._waiting: deque[SearchGroup] = deque()
        self._current: SearchGroup | None = None
        self._dropped: set[int] = set()
        self._window: object = object()  # of the group that was searched last
        self._is_stopped = False

    def join(self, group: SearchGroup) -> None:
        """Takes in a group; see `Executor.join`."""
        with self._changed:
            self._waiting.append(group)
            self._changed.notify_all()
            if len(self._waiting) == 1:
                self._tell_next()

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches; see `Executor.drop`."""
        with self._changed:
            in_hand = {search.key for group in self._groups() for search in group.searches}
            self._dropped |= in_hand & set(keys)
            self._waiting = deque(group for group in self._waiting if self._wanted(group))
            self._tell_next()

    def run(self, finish: Finish) -> None:
        """Searches group after group; see `Executor.run`."""
        while (group := self._take()) is not None:
            clusters = tuple(uncut(search.clusters) for search in group.searches)
            self._cache.begin_group(clusters, self._next_query(), self._horizon(group))
            try:
                for position, search in enumerate(group.searches):
                    self._expire(group.searches[position + 1 :], finish)
                    self._search(position, search, finish)
            finally:
                self._cache.end_group()

    def stop(self) -> None:
        """Ends the query in hand too; see `Executor.stop`."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._cache.stop()

    def check_integrity(self) -> None:
        """Checks the cache's books; see `Executor.check_integrity`."""
        self._cache.check_integrity()

    # ---- groups

    def _take(self) -> SearchGroup | None:
        with self._changed:
            if self._current is not None:
                self._dropped.difference_update(search.key for search in self._current.searches)
            self._current = None
            while not self._waiting and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped:
                return None
            self._current = self._waiting.popleft()
            return self._current

    def _groups(self) -> list[SearchGroup]:
        return [*self._waiting] + ([self._current] if self._current is not None else [])

    def _wanted(self, group: SearchGroup) -> tuple[Search, ...]:
        return tuple(search for search in group.searches if search.key not in self._dropped)

    def _next_query(self) -> tuple[SliceId, ...]:
        """The clusters of the query that opens the next group: what waits here is known, the rest
        is advice.
        """
        with self._changed:
            wanted = self._wanted(self._waiting[0]) if self._waiting else ()
            if wanted:
                return uncut(wanted[0].clusters)
            return uncut(self._current.next_query) if self._current is not None else ()

    def _tell_next(self) -> None:
        # Without a current group the next one begins at once: to read ahead for it would only be
        # late.
        if self._current is not None:
            self._cache.next_changed(self._next_query())

    def _horizon(self, group: SearchGroup) -> Mapping[SliceId, int] | None:
        """What is foreseen when a window begins; None within one."""
        if group.window is not None and group.window == self._window:
            return None
        self._window = group.window
        return {SliceId(cluster): windows for cluster, windows in group.horizon.items()}

    # ---- queries

    def _search(self, position: int, search: Search, finish: Finish) -> None:
        """Searches one query, unless nobody wants it; asked again before it is handed out."""
        if self._is_wanted(search, finish):
            found = self._find(position, search)
            if self._is_wanted(search, finish):
                finish(search, found)

    def _expire(self, behind: Sequence[Search], finish: Finish) -> None:
        """Ends what waits, in this group or a later one, and has expired: it need not wait for its
        turn.
        """
        now_us = self._clock.now_us()
        with self._changed:
            waiting = [*behind, *(search for group in self._waiting for search in group.searches)]
            late = [
                search
                for search in waiting
                if search.deadline_us is not None
                and now_us >= search.deadline_us
                and search.key not in self._dropped
            ]
            self._dropped.update(search.key for search in late)
        for search in late:
            finish(search, None)

    def _is_wanted(self, search: Search, finish: Finish) -> bool:
        with self._changed:
            if self._is_stopped or search.key in self._dropped:
                return False
        if search.deadline_us is None or self._clock.now_us() < search.deadline_us:
            return True
        finish(search, None)
        return False

    def _find(self, position: int, search: Search) -> SearchResult:
        started_us = now_us = self._clock.now_us()
        search_us = 0
        slot = self._table.add(search.top_k)
        arrivals: dict[ClusterId, Arrival] = {}
        with closing(self._cache.query(position, uncut(search.clusters))) as arriving:
            for arrival in arriving:
                arrived_us = self._clock.now_us()
                cluster = ClusterId(arrival.cluster)
                arrivals[cluster] = arrival
                if arrival.error is None:
                    self._score(cluster, search, slot)
                now_us = self._clock.now_us()
                search_us += now_us - arrived_us
                if arrival.error is None:
                    self._events.scored(cluster, arrived_us, now_us)
        best = self._table.best(slot)
        self._table.remove(slot)
        ended_us = self._clock.now_us()
        search_us += ended_us - now_us
        scored = {cluster for cluster, arrival in arrivals.items() if arrival.error is None}
        return SearchResult(
            best=best,
            probes=tuple(
                Probe(cluster=c, tier=arrivals[c].tier) for c in search.clusters if c in arrivals
            ),
            skipped=tuple(cluster for cluster in search.clusters if cluster not in scored),
            errors=tuple(
                arrival.error for arrival in arrivals.values() if arrival.error is not None
            ),
            bytes_read=self._cache.query_read_bytes(),
            started_us=started_us,
            load_us=ended_us - started_us - search_us,
            search_us=search_us,
        )

    def _score(self, cluster: ClusterId, search: Search, slot: int) -> None:
        batch = QueryBatch(np.array([slot], np.intp), search.vector[None, :])
        scorings = [Scoring(self._cache.pages(SliceId(cluster)), np.zeros(1, np.intp))]
        floors, top_ks = self._table.floors(batch.slots), self._table.top_ks(batch.slots)
        candidates, _ = scan(self._kernel, scorings, batch, floors, top_ks)
        self._table.merge([candidates])
