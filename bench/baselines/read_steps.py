"""Events and actions of the planner of reads: frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.retrieval import Tier
from searcher.events import Purpose
from searcher.plan.slices import SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBegan:
    """A group is searched from now on. `queries`: clusters of each query, in search order.

    `next_query`: the clusters of the first query of the next group (CaGR-RAG, Eq. 4); advice. No
    cluster is twice in a query.
    """

    queries: tuple[tuple[SliceId, ...], ...]
    next_query: tuple[SliceId, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryBegan:
    """The next query of the group is searched now; the one before has released its clusters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """The current query has scored this cluster and does not need it any more."""

    cluster: SliceId


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """All queries of the current group have been searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadEnded:
    """A read that was asked for is done, and the cluster is whole."""

    cluster: SliceId


Event = GroupBegan | QueryBegan | Released | GroupEnded | ReadEnded


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


Action = Evict | Read | Grant
