"""What the cluster-major planner is told (events) and what it answers (actions): frozen values,
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.record import ClusterId


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A query: its number (each used once, growing), C(q) without repetition, nearest first, and
    its deadline if any.
    """

    query: int
    clusters: tuple[ClusterId, ...]
    deadline_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """Queries that are searched from now on, beside those in hand.

    `horizon`: when clusters are wanted next, in windows after this one (1: the next); advice. It
    replaces what was known before. None: these queries belong to the same window as those before
    them.
    """

    queries: tuple[Wanted, ...]
    horizon: Mapping[ClusterId, int] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """Nobody waits for this query any more. One that is done or unknown is passed over."""

    query: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadEnded:
    """A read that the planner asked for ended well: all of the cluster is in memory."""

    cluster: ClusterId


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFailed:
    """A read was given up or cancelled. `is_stuck`: its memory is still the kernel's, and comes
    back as `SpaceFreed`.
    """

    cluster: ClusterId
    is_stuck: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFreed:
    """The memory of a stuck read came back."""

    cluster: ClusterId


@dataclass(frozen=True, kw_only=True, slots=True)
class SubstageEnded:
    """The sub-stage that the planner gave out last is scored."""


Event = Joined | Dropped | ReadEnded | ReadFailed | SpaceFreed | SubstageEnded


@dataclass(frozen=True, kw_only=True, slots=True)
class Evict:
    """Forget a resident cluster; comes before the read that needs its room."""

    cluster: ClusterId


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Read a cluster: room for it is reserved. `query`: for whose sake, None when it is read
    ahead.
    """

    cluster: ClusterId
    query: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Promote:
    """A read ahead is wanted now: it goes before all others that are."""

    cluster: ClusterId


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Nobody wants this read any more; its end is still told, as `ReadFailed` or `ReadEnded`."""

    cluster: ClusterId


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A cluster cannot be had: these queries go without it."""

    cluster: ClusterId
    queries: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """A query's last cluster is scored, or skipped. `skipped`: what it went without."""

    query: int
    skipped: tuple[ClusterId, ...] = ()


Action = Evict | Read | Promote | Cancel | Skip | Finish


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A cluster, in memory, to be scored for these queries in one call."""

    cluster: ClusterId
    queries: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Substage:
    """Clusters to score now, in this order; they stay in memory until `SubstageEnded`."""

    tasks: tuple[Task, ...]
