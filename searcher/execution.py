"""How a group is searched: the seam `Executor`, and the one that goes query by query, in the order of the group.

Cluster-major execution (each cluster scored once for all queries in hand) comes *later*, behind the same seam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from schemas.record import ClusterId
from schemas.retrieval import Probe
from searcher.cache.cluster_cache import Arrival, ClusterCache, ReadError
from searcher.events import EventLog
from searcher.scoring import Scorer, TopK, merge


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """One query to search. `vector`: (dim,) float32, normalised; `clusters`: C(q), nearest first, without repetition."""

    part: int
    vector: npt.NDArray[np.float32]
    clusters: tuple[ClusterId, ...]
    top_k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What the search of one query found. `skipped`: probed clusters that were not scored, and `errors` says why.

    Times in microseconds: `load_us` waited for clusters, `search_us` scored and merged.
    """

    best: TopK
    probes: tuple[Probe, ...]
    skipped: tuple[ClusterId, ...]
    errors: tuple[ReadError, ...]
    bytes_read: int
    started_us: int
    load_us: int
    search_us: int


class Executor(Protocol):
    """Searches a group. Called from the search thread; blocks."""

    def run(
        self,
        searches: Sequence[Search],
        next_query: Callable[[], tuple[ClusterId, ...]],
        is_wanted: Callable[[Search], bool],
        finish: Callable[[Search, Found], None],
    ) -> None:
        """Calls `finish` for each search as soon as it is done, in any order.

        `next_query` tells what is known of the group after this one. `is_wanted` is asked before a search begins and
        before it finishes: False drops it (revoked, expired, shutting down), whoever said so has seen to its answer.
        """
        ...


class QueryByQuery:
    """One query after the other, each cluster scored as it arrives (CaGR-RAG, Alg. 1 step 4)."""

    def __init__(self, cache: ClusterCache, scorer: Scorer, clock: Clock, events: EventLog) -> None:
        self._cache = cache
        self._scorer = scorer
        self._clock = clock
        self._events = events

    def run(
        self,
        searches: Sequence[Search],
        next_query: Callable[[], tuple[ClusterId, ...]],
        is_wanted: Callable[[Search], bool],
        finish: Callable[[Search, Found], None],
    ) -> None:
        """Searches the group; see `Executor.run`."""
        self._cache.begin_group(tuple(search.clusters for search in searches), next_query())
        try:
            for position, search in enumerate(searches):
                if is_wanted(search):
                    found = self._search(position, search)
                    if is_wanted(search):
                        finish(search, found)
        finally:
            self._cache.end_group()

    def _search(self, position: int, search: Search) -> Found:
        started_us = now_us = self._clock.now_us()
        load_us = search_us = 0
        parts: list[TopK] = []
        arrivals: dict[ClusterId, Arrival] = {}
        with closing(self._cache.query(position, search.clusters)) as arriving:
            for arrival in arriving:
                arrived_us = self._clock.now_us()
                load_us += arrived_us - now_us
                arrivals[arrival.cluster] = arrival
                if arrival.error is None:
                    parts.append(self._scorer(self._cache.rows(arrival.cluster), search.vector, search.top_k))
                now_us = self._clock.now_us()
                search_us += now_us - arrived_us
                if arrival.error is None:
                    self._events.scored(arrival.cluster, arrived_us, now_us)
        best = merge(parts, search.top_k)
        search_us += self._clock.now_us() - now_us
        scored = {cluster for cluster, arrival in arrivals.items() if arrival.error is None}
        return Found(
            best=best,
            probes=tuple(Probe(cluster=c, tier=arrivals[c].tier) for c in search.clusters if c in arrivals),
            skipped=tuple(cluster for cluster in search.clusters if cluster not in scored),
            errors=tuple(arrival.error for arrival in arrivals.values() if arrival.error is not None),
            bytes_read=self._cache.query_read_bytes(),
            started_us=started_us,
            load_us=load_us,
            search_us=search_us,
        )
