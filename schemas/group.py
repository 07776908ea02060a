"""The record of `rag.groups.v1`: queries that share clusters, in search order."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.query import Query, TopK
from schemas.record import ClusterId, Headers, Identifier, NonNegative, Record, Source, Times


class GroupedSearch(Record, frozen=True, kw_only=True):
    """Another search of the round of a query; its fields are as in `GroupedQuery`."""

    vector: bytes
    clusters: Annotated[tuple[ClusterId, ...], msgspec.Meta(min_length=1)]
    top_k: TopK | None = None


class GroupedQuery(Record, frozen=True, kw_only=True):
    """One query of a group.

    `vector`: (dim,) little-endian float32, L2-normalised. `clusters`: C(q), nearest first. `query`:
    as published, without its vector. Times are epoch microseconds; `timings_us`: time by stage.
    `other_searches`: those of the same round; their results are in the same retrieval.
    """

    query: Query
    source: Source
    headers: Headers = ()
    arrival_us: NonNegative
    deadline_us: NonNegative | None = None
    vector: bytes
    clusters: Annotated[tuple[ClusterId, ...], msgspec.Meta(min_length=1)]
    timings_us: Times = msgspec.field(default_factory=dict)
    other_searches: tuple[GroupedSearch, ...] = ()

    @property
    def all_clusters(self) -> tuple[ClusterId, ...]:
        """The clusters of all its searches, each once."""
        if not self.other_searches:
            return self.clusters
        lists = (self.clusters, *(search.clusters for search in self.other_searches))
        return tuple(dict.fromkeys(cluster for one in lists for cluster in one))


class NextGroup(Record, frozen=True, kw_only=True):
    """The first query of the next group of this lane and its clusters (CaGR-RAG, Eq. 4-5)."""

    query_id: Identifier
    clusters: tuple[ClusterId, ...]


class HorizonEntry(Record, frozen=True, kw_only=True):
    """When a cluster is needed next: in `windows` windows, by `queries` queries."""

    cluster: ClusterId
    windows: NonNegative
    queries: NonNegative


class Group(Record, frozen=True, kw_only=True):
    """An ordered group of one window (CaGR-RAG, Eq. 5).

    `next` and `horizon` are advice: they never change a result.
    """

    index_version: Identifier
    centroids_fingerprint: Identifier
    embedding_model: Identifier
    grouper: Identifier
    window_id: NonNegative
    lane: NonNegative
    sequence: NonNegative
    queries: Annotated[tuple[GroupedQuery, ...], msgspec.Meta(min_length=1)]
    clusters: tuple[ClusterId, ...]
    next: NextGroup | None = None
    horizon: tuple[HorizonEntry, ...] = ()

    def published(self, grouped: GroupedQuery) -> Query:
        """Returns a query as it must be to be published again.

        One that names the index's model gets the vector that was searched: its own, or one that
        finds the same as its text.
        """
        if grouped.query.embedding_model != self.embedding_model:
            return grouped.query
        return msgspec.structs.replace(grouped.query, vector=grouped.vector)
