"""EdgeRAG and CaGR-RAG as published, on our reader and scorer: only the algorithm differs.

All search query by query with EdgeRAG's cache (CaGR-RAG, section 4, builds on it). The paper
contradicts itself in two places, and both readings take part. *Groups*: `greedy` is Algorithm 1
(similar to one member), `agglomerative` is Eq. 3 (similar to all members). *Prefetching* the
clusters of the next group's first query: `cagr-literal` begins after the last search of a group,
as Algorithm 1 prints it; `cagr-best` overlaps the group's searches, pins what it read until it is
used, and shares reads in flight.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.baselines.carpool import CarpoolExact
from bench.baselines.contestant import AskedWindow, ContestantEntry, Limits, SearchData
from bench.baselines.groups import Grouping, groups_of
from bench.baselines.read_latencies import PREPARATION, load_read_latencies
from bench.baselines.read_planner import PrefetchMode

if TYPE_CHECKING:
    from searcher.build import OpenExecutor
    from searcher.executor import SearchGroup

SIMILARITY_MIN = 0.5
"""The paper's theta, section 5.1."""


class PublishedSearch(CarpoolExact):
    """Query by query in groups. Planning the groups of a window is part of the measured time."""

    def __init__(self, *, grouping: Grouping, prefetch: PrefetchMode) -> None:
        super().__init__(slice_bytes_max=0)
        self._grouping = grouping
        self._prefetch = prefetch

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the plane and the grouping policy."""
        groups_of(self._grouping, [(1,), (1,)], SIMILARITY_MIN)  # loads its libraries first
        self._read_latencies_us = load_read_latencies(data)
        super().open(data, limits)

    def _executor(self) -> OpenExecutor:
        from bench.baselines.query_by_query import query_by_query

        return query_by_query(self._prefetch, self._read_latencies_us)

    def _groups(self, window: AskedWindow) -> list[SearchGroup]:
        clusters = [tuple(query.clusters.tolist()) for query in window.queries]
        groups = groups_of(self._grouping, clusters, SIMILARITY_MIN)
        return [
            self._group(window, members, following)
            for members, following in zip(groups, [*groups[1:], ()], strict=True)
        ]


def _entry(
    name: str, summary: str, grouping: Grouping, prefetch: PrefetchMode = "none"
) -> ContestantEntry:
    return ContestantEntry(
        name=name,
        summary=summary,
        is_exact=True,
        has_cache_budget=True,
        make=partial(PublishedSearch, grouping=grouping, prefetch=prefetch),
        preparation=PREPARATION,
    )


_LITERAL = "prefetching after a group's last search, as printed"
_BEST = "prefetching during a group's searches, pinned until used"
_ALG_1 = "CaGR-RAG, groups by Algorithm 1"
_EQ_3 = "CaGR-RAG, groups by Eq. 3"
ENTRIES = (
    _entry(
        "edgerag", "EdgeRAG: queries in order of arrival, evicts by latency x count", "per_query"
    ),
    _entry("cagr-greedy", "CaGR-RAG without prefetching, groups by Algorithm 1", "greedy"),
    _entry("cagr-literal-greedy", f"{_ALG_1}, {_LITERAL}", "greedy", "after_group"),
    _entry("cagr-literal-agglomerative", f"{_EQ_3}, {_LITERAL}", "agglomerative", "after_group"),
    _entry("cagr-best-greedy", f"{_ALG_1}, {_BEST}", "greedy", "overlapped"),
    _entry("cagr-best-agglomerative", f"{_EQ_3}, {_BEST}", "agglomerative", "overlapped"),
)
