"""Events and actions of the planner of reads: frozen values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from schemas.retrieval import Tier
from searcher.events import Purpose
from searcher.plan.slices import SliceId

PrefetchResult = Literal["used", "late", "wasted"]


def uncut(clusters: Iterable[int]) -> tuple[SliceId, ...]:
    """Returns the slices of clusters that are not cut: slice n is cluster n."""
    return tuple(map(SliceId, clusters))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBegan:
    """A group is searched from now on. `queries`: clusters of each query in search order.

    `next_query`: the clusters of the first query of the next group (CaGR-RAG, Eq. 4); advice.
    """

    queries: tuple[tuple[SliceId, ...], ...]
    next_query: tuple[SliceId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryBegan:
    """The query at `position` of the group is searched now; those before it are done."""

    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """The current query has scored this cluster and needs it no more."""

    cluster: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryEnded:
    """The current query is done, or was given up with clusters left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupEnded:
    """The current group is over, even if some of its queries were not searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadEnded:
    """A read that was asked for is done, and the cluster is whole."""

    cluster: SliceId


Event = GroupBegan | QueryBegan | Released | QueryEnded | GroupEnded | ReadEnded


@dataclass(frozen=True, kw_only=True, slots=True)
class Evict:
    """Free the bytes of this cluster now, before the actions that follow."""

    cluster: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Start to read this cluster; its bytes are reserved."""

    cluster: SliceId
    purpose: Purpose


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The current query may score this cluster until it releases it. `tier` "ssd": after a read."""

    cluster: SliceId
    tier: Tier


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefetchEnded:
    """What became of a prefetched cluster.

    "used": a query found it resident; "late": a query found it still being read, and joined;
    "wasted": it was evicted, or its group passed, before a query asked for it.
    """

    cluster: SliceId
    result: PrefetchResult


Action = Evict | Read | Grant | PrefetchEnded
