"""What `carpool status` knows of groups and services, and which service is stuck. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group. `partitions`: the (topic, partition) pairs assigned to it."""

    name: str
    host: str
    partitions: list[tuple[str, int]]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a partition after the committed offset.

    `waiting` may count transaction markers between records, never at the end. `oldest_s`: the age
    of the first waiting record; None without one, or where it could not be read.
    """

    topic: str
    number: int
    waiting: int
    oldest_s: float | None = None
    member: str | None = None
    has_moved: bool = True
    """Whether the committed offset changed between the two looks, or no record waits."""


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer group of a service. `state` as Kafka names it."""

    name: str
    state: str
    members: list[Member]
    partitions: list[Partition]

    @property
    def waiting(self) -> int:
        """Records that wait, over all partitions."""
        return sum(partition.waiting for partition in self.partitions)


class PartitionIdle(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the service, and for how long it did not move while records waited."""

    topic: str
    number: int
    idle_s: float


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a service. `lag_records`: records after its position; None without an answer.

    `idle_s`: seconds since it last took in or finished a record, or no record waited.
    """

    name: str
    address: str
    state: str
    missing: list[str]
    reads: str
    notes: list[str] = []
    index: str | None = None
    """The version of the index that a grouper or searcher has open."""
    is_paused: bool = False
    lag_records: int | None = None
    idle_s: float | None = None
    in_flight: int | None = None
    consumed: int | None = None
    answers: dict[str, int] = {}
    dead_letters: int | None = None
    partitions: list[PartitionIdle] = []

    @property
    def answers_http(self) -> bool:
        """Whether the service answered."""
        return self.state != "down"


def who_is_stuck(
    name: str, group: GroupStatus, services: Sequence[ServiceStatus], *, stuck_after_s: float
) -> str | None:
    """Returns one sentence that says why the service `name` is stuck; None where it is not.

    A partition is stuck where records wait, no commit was seen, and either it has no owner that
    answers, or its service has not moved for `stuck_after_s`. Where the address of the service is
    not known, the age of the oldest waiting record is used instead.
    """
    processes = [each for each in services if each.name == name]
    still = [
        (partition, why)
        for partition in group.partitions
        if partition.waiting and not partition.has_moved
        if (why := _why(partition, group, processes, stuck_after_s)) is not None
    ]
    if not still:
        return None
    worst, why = max(still, key=lambda found: (found[0].waiting, -found[0].number))
    others = sum(partition.waiting for partition, _ in still) - worst.waiting
    more = f" ({others} more in {len(still) - 1} other partitions)" if others else ""
    return (
        f"{name} is stuck: {worst.topic}[{worst.number}] has {worst.waiting} "
        f"waiting{more}{_since(worst, processes)}; {why}"
    )


def indexes_line(processes: Sequence[ServiceStatus]) -> tuple[str, bool]:
    """Returns which index the services have, and whether all that say so have the same."""
    holders: dict[str, list[str]] = {}
    for process in processes:
        if process.index is not None:
            holders.setdefault(process.index, []).append(process.name)
    if not holders:
        return "index: no service says which", True
    parts = [f"{' and '.join(holders[version])}: {version}" for version in sorted(holders)]
    if len(parts) == 1:
        return f"index of {parts[0]}", True
    return (
        f"indexes differ: {'; '.join(parts)}. Restart the services with an older index than "
        f"{max(holders)} with that one",
        False,
    )


def _why(
    partition: Partition,
    group: GroupStatus,
    processes: Sequence[ServiceStatus],
    stuck_after_s: float,
) -> str | None:
    idle_s = _idle_s(partition, processes)
    is_late = (idle_s if idle_s is not None else partition.oldest_s or 0.0) >= stuck_after_s
    if not group.members:
        return f"its consumer group {group.name} has no members: is the service running?"
    if partition.member is None:
        return f"no member has it (the group is {group.state})" if is_late else None
    speaker = _owner(partition, processes)
    silent = [process for process in processes if not process.answers_http]
    if speaker is None and silent:
        where = " or ".join(process.address for process in silent)
        return f"member {partition.member} is assigned it and does not answer (asked at {where})"
    if not is_late:
        return None
    if speaker is None:
        return f"member {partition.member} is assigned it; say where it is with --url to ask it why"
    reasons = "; ".join(speaker.missing)
    paused = "has paused its intake" if speaker.is_paused else "lives"
    return f"member {partition.member} is assigned it and {paused}" + (
        f": {reasons}" if reasons else ""
    )


def _since(partition: Partition, processes: Sequence[ServiceStatus]) -> str:
    idle_s = _idle_s(partition, processes)
    if idle_s is not None:
        return f" and has not moved for {idle_s:.0f} s"
    return f", the oldest for {partition.oldest_s:.0f} s" if partition.oldest_s is not None else ""


def _idle_s(partition: Partition, processes: Sequence[ServiceStatus]) -> float | None:
    """Returns for how many seconds partition and service did not move; None: not known."""
    owner = _owner(partition, processes)
    if owner is None:
        return None
    own = next(
        each.idle_s
        for each in owner.partitions
        if (each.topic, each.number) == (partition.topic, partition.number)
    )
    return own if owner.idle_s is None else min(own, owner.idle_s)


def _owner(partition: Partition, processes: Sequence[ServiceStatus]) -> ServiceStatus | None:
    """Returns the process that answers and is assigned this partition."""
    place = (partition.topic, partition.number)
    has_it = (
        process
        for process in processes
        if any((each.topic, each.number) == place for each in process.partitions)
    )
    return next(has_it, None)
