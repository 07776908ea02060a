"""Events, actions and tasks of the cluster-major planner: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carpool.errors import ReadError
from searcher.plan.slices import SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A query: its number, its slices, nearest cluster first, and its deadline if any.

    Each number is used once, and numbers grow. No slice is repeated. `is_nearest_first`: what is
    read for this query is read in the order of `slices`.
    """

    query: int
    slices: tuple[SliceId, ...]
    deadline_us: int | None = None
    is_nearest_first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """Queries that are searched from now on, together with those in progress.

    `horizon`: in how many windows a slice is wanted next (1: the next window); advice. It replaces
    the previous one. None: the queries belong to the same window as those before them.
    """

    queries: tuple[Wanted, ...]
    horizon: Mapping[SliceId, int] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """The result of a query is not needed any more. One that is done or unknown is ignored."""

    query: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadEnded:
    """A read succeeded: all of the slice is in memory, undamaged."""

    slice_id: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFailed:
    """A read was given up, because of `error`.

    `is_stuck`: the kernel still owns the memory; `RoomFreed` follows when it returns it.
    """

    slice_id: SliceId
    error: ReadError | None = None
    is_stuck: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomFreed:
    """The memory of a stuck read is free: the kernel has ended it."""

    slice_id: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class SubstageEnded:
    """The sub-stage that the planner gave out last is scored."""


ReadEvent = ReadEnded | ReadFailed | RoomFreed
Event = Joined | Dropped | ReadEvent | SubstageEnded


@dataclass(frozen=True, kw_only=True, slots=True)
class Evict:
    """Free a resident slice; comes before the read that needs its room."""

    slice_id: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Read a slice for `query`, or ahead (None); room for it is reserved."""

    slice_id: SliceId
    query: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Promote:
    """A query wants a slice that is being read for none: its read goes before others for none."""

    slice_id: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class Demote:
    """No query wants a slice any more that is being read: its read goes behind all others."""

    slice_id: SliceId


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipSlice:
    """A slice cannot be read: these queries go without it."""

    slice_id: SliceId
    queries: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishQuery:
    """The last slice of a query is scored or skipped. `skipped`: the slices it went without."""

    query: int
    skipped: tuple[SliceId, ...] = ()


Action = Evict | Read | Promote | Demote | SkipSlice | FinishQuery


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A slice to be scored for these queries; it stays in memory until `SubstageEnded`."""

    slice_id: SliceId
    queries: tuple[int, ...]
