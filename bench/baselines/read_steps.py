"""What the planner of reads is told (events) and what it answers (actions): frozen values, nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """A group is searched from now on. `queries`: the clusters of each query, in search order,
    nearest first.

    `next_query`: the clusters of the first query of the next group, as far as known (CaGR-RAG, Eq.
    4); advice. `horizon`: in how many windows a cluster is wanted next (1: the next), for the
    policy; None: the group is of the same window as the one before.
    """

    queries: tuple[tuple[SliceId, ...], ...]
    next_query: tuple[SliceId, ...] = ()
    horizon: Mapping[SliceId, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NextChanged:
    """Something else than was thought comes after the current group: the clusters of its first
    query.
    """

    clusters: tuple[SliceId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryBegan:
    """The query at `position` of the current group is searched now; those before it are done or
    skipped.
    """

    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """The current query has scored this cluster and holds no view of it any more."""

    cluster: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryEnded:
    """The current query is done or was given up; what it still held or waited for, it does not need
    any more.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupEnded:
    """The current group has passed, whether or not all its queries were searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadEnded:
    """A read that was asked for is done, and the cluster is whole."""

    cluster: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFailed:
    """A read that was asked for failed for good; its bytes are free again, unless it `is_stuck`:
    then `SpaceFreed` follows.
    """

    cluster: SliceId
    is_stuck: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFreed:
    """The bytes of a read that was stuck are free again."""

    cluster: SliceId


Event = (
    GroupBegan
    | NextChanged
    | QueryBegan
    | Released
    | QueryEnded
    | GroupEnded
    | ReadEnded
    | ReadFailed
    | SpaceFreed
)


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
    """The current query may score this cluster until it releases it. `tier` "ssd": it had to wait
    for a read.
    """

    cluster: SliceId
    tier: Tier


@dataclass(frozen=True, kw_only=True, slots=True)
class Deny:
    """The current query will not get this cluster: its read failed, or reads that are stuck leave
    no room for it.
    """

    cluster: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefetchEnded:
    """What became of a prefetched cluster.

    "used": a query found it resident; "late": a query found it still being read, and joined;
    "wasted": it was evicted, or its group passed, before a query asked for it.
    """

    cluster: SliceId
    result: PrefetchResult


Action = Evict | Read | Grant | Deny | PrefetchEnded
